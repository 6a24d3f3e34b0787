"""The options of a run, ``trainer.v1.sampler.sampler_kwargs.pruning``, and the ``Method`` they ask for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dppo.errors import ConfigError, raise_problems
from dppo.methods import METHODS, Method, in_words
from dppo.objective import DAPO_TOKENS, DR_GRPO, GRPO_MEAN, LUSPO, WHOLE_GROUPS, Normaliser
from dppo.pruning import PIVOTAL
from dppo.settings import AUTO, FULL_SHARE
from dppo.step.asked import CHOICES, RATES, choice_problems, default_rate, pruned, rate_problems, unread_problems
from dppo.typed import check_fields

WHERE = "trainer.v1.sampler.sampler_kwargs.pruning"
"""Where options are in verl's configuration; verl hands that dictionary on without looking into it."""

TOKEN_SUM = Normaliser(
    name="token-sum", per_sequence=False, denominator=lambda sequences, tokens, max_tokens: 1.0, prompt_exact=True
)
"""Divides by nothing."""
NORMALISERS = {
    "token-mean": DAPO_TOKENS,
    "token-sum": TOKEN_SUM,
    "seq-mean-token-mean": GRPO_MEAN,
    "seq-mean-token-sum": LUSPO,
    "seq-mean-token-sum-norm": DR_GRPO,
}
"""What verl's ``loss_agg_mode`` divides by; its denominators are used, these say what is exact and how scores count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSettings:
    """Options of pruning, by the names they have in ``DPPOConfig``.

    Raises:
        ConfigError: listing every option that is out of range or contradicts another.
    """

    method: str = "dppo"
    """What is dropped and how: ``dppo``, ``dppo_threshold``, ``infobatch``, ``dppo_history``, ...; ``grpo`` drops
    nothing and trains on verl's whole batch."""
    completion_prune_rate: float | str = "auto"
    """Share of the completions with a gradient that is not trained on, in [0, 1), or ``auto``. Those without a gradient
    are left out at any rate: that is exact."""
    prompt_prune_rate: float | str = 0.0
    """Share of the candidate prompts with a history that is not rolled out, in [0, 1), or ``auto``."""
    prompt_mode: str = "thin"
    """``thin``: of a block of ``data.train_batch_size`` prompts fewer are rolled out. ``fill``: blocks are longer and
    about ``data.train_batch_size`` prompts are rolled out."""
    completion_score: str = AUTO
    """What guesses a completion's gradient: ``confidence``, ``length``, ``advantage``, ``uniform``; ``auto`` is the
    method's, and ``confidence`` for ``dppo``, since verl knows every token's probability."""
    completion_budget: str = "rows"
    """What the rate is a share of: ``rows`` or ``tokens``."""
    sampling_design: str = PIVOTAL.name
    """How completions are drawn given their probabilities: ``pivotal``, ``systematic`` or ``poisson``."""
    prune_floor: float | None = None
    """Lowest probability of a unit, in (0, 1 - rate]; no weight exceeds one over it. None for 0.2, or less where it
    must be."""
    prune_schedule: str = AUTO
    """How rates change over the run: ``constant``, ``stop``, ``fade``, or ``auto`` for the method's own."""
    prune_until: float = FULL_SHARE
    """Share of the run, in [0, 1], with the full rates where the schedule is not constant."""
    history_half_life: float | None = None
    """Steps after which half of what is known of a prompt has faded, > 0. None for those of three epochs."""
    seed: int = 0
    """Of the order of prompts and of all draws, >= 0."""
    accept_bias: bool = False
    """Must be set to train with a method whose choice biases the gradient."""

    def __post_init__(self) -> None:
        check_fields(self, f"+{WHERE}.completion_prune_rate=0.5")
        problems = choice_problems(self, CHOICES)
        if self.seed < 0:
            problems.append(f"seed={self.seed} must be >= 0. Write seed=0.")
        if not 0 <= self.prune_until <= 1:
            problems.append(f"prune_until={self.prune_until:g} must be in [0, 1]. Write prune_until={FULL_SHARE}.")
        if self.history_half_life is not None and not 0 < self.history_half_life <= math.inf:
            problems.append(f"history_half_life={self.history_half_life:g} must be > 0 steps. Leave it out.")
        if not problems:
            problems += self._method_problems(METHODS[self.method])
        raise_problems(WHERE, problems)

    def _method_problems(self, base: Method) -> list[str]:
        problems = rate_problems(self, base) + unread_problems(self, base)
        if base.rounds is not None:
            problems.append(
                f"method={self.method!r} rolls prompts out in rounds, which verl does by itself. Write method=dppo, or "
                "use trainer.v1.trainer_mode=sync with algorithm.filter_groups.enable=True."
            )
        of_verl = base.fixes - ({"advantages"} if base.advantages.from_history else set())
        if of_verl or base.statistics is not WHOLE_GROUPS:
            own = ", ".join(sorted(of_verl)) or "advantages"
            problems.append(
                f"method={self.method!r} brings an objective of its own ({own}), and here "
                "verl's options say the objective. Write method=dppo, and choose it by "
                "actor.policy_loss.loss_mode, actor.loss_agg_mode and algorithm.adv_estimator."
            )
        biased = () if problems else pruned(self, base, sampler_log_probs=True).selection_bias
        if biased and not self.accept_bias:
            problems.append(
                f"method={self.method!r} is biased: {'; '.join(biased)}. Write method=dppo, or accept_bias=True to "
                "train with it on purpose."
            )
        return problems


def read_settings(options: Mapping[str, Any]) -> PruningSettings:
    """The settings in a dictionary of options.

    Args:
        options: what is under ``trainer.v1.sampler.sampler_kwargs.pruning``, by name.

    Raises:
        ConfigError: an option that does not exist, or as for ``PruningSettings``.
    """
    known = [field.name for field in fields(PruningSettings)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"{WHERE}.{unknown[0]} is no option. There are {', '.join(known)}.")
    given: dict[str, Any] = dict(options)
    base = METHODS.get(given.get("method", "dppo"))
    if base is not None:  # a method that prunes nothing, or prompts only, is not asked for more
        given = {**{name: default_rate(name, base) for name in RATES}, **given}
    return PruningSettings(**{name: _number(value) if name in RATES else value for name, value in given.items()})


def _number(rate: Any) -> Any:
    return float(rate) if isinstance(rate, int) and not isinstance(rate, bool) else rate


def unreadable_options(get: Callable[[str], Any]) -> list[str]:
    """One sentence per option of verl that a method is made of and that cannot be read as what it is.

    Args:
        get: the value of an option by its path in verl's configuration, None where there is none.
    """
    actor, problems = "actor_rollout_ref.actor", []
    mode = get(f"{actor}.loss_agg_mode")
    if mode not in NORMALISERS:
        problems.append(
            f"{actor}.loss_agg_mode={mode} is not one of {', '.join(NORMALISERS)}. "
            f"Write {actor}.loss_agg_mode=token-mean."
        )
    numbers = {f"{actor}.entropy_coeff": 0.0, f"{actor}.policy_loss.dro_beta": 0.0}
    if get(f"{actor}.use_kl_loss"):
        numbers[f"{actor}.kl_loss_coef"] = 0.001
        if get(f"{actor}.kl_loss_coef") is None:
            problems.append(f"{actor}.kl_loss_coef=null with use_kl_loss=True. Write {actor}.kl_loss_coef=0.001.")
    for name, example in numbers.items():
        value = get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            problems.append(f"{name}={value!r} is no number. Write {name}={example}.")
    return problems


def method_of(settings: PruningSettings, *, loss_agg_mode: str, penalty: float, entropy_coef: float) -> Method:
    """The method of a run: pruning from the settings, of the objective what decides which completions have a gradient.

    Args:
        settings: of the run.
        loss_agg_mode: verl's.
        penalty: coefficient of what ignores the advantage, such as the KL term, >= 0.
        entropy_coef: of the entropy bonus.
    """
    base = METHODS[settings.method]
    objective = replace(base, normaliser=NORMALISERS[loss_agg_mode], beta=penalty, entropy_coef=entropy_coef)
    return pruned(settings, objective, sampler_log_probs=True)


def keeps_all(method: Method) -> bool:
    """Whether a method leaves the whole step to verl: it drops nothing, and has no advantages of its own.

    Args:
        method: of the run.
    """
    own = METHODS[method.name]
    return not (own.completions.rate or own.prompts.rate or own.advantages.from_history)


def lines(method: Method, *, prompts: int, generations: int, optimizer_steps: int) -> list[str]:
    """What a run will do, said at its start.

    Args:
        method: of the run.
        prompts: of a block.
        generations: completions of each.
        optimizer_steps: of one block.
    """
    reasons = method.biases(optimizer_steps)
    found = [f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}"]
    if keeps_all(method):
        found.append("nothing is dropped: verl trains on its whole batch, in our order of prompts")
    else:
        share = "by their history" if method.sizes is not None else f"{generations} each"
        found.append(f"prompts: {method.prompts if method.prompts.rate else 'all'} of a block of {prompts}, {share}")
        kept = f"{1 - method.completions.rate:.0%} of those with a gradient"
        found.append(f"completions: {kept}, score {method.score_name}")
        if optimizer_steps > 1:
            found.append(f"{optimizer_steps} optimizer steps a block, completions dealt and drawn anew for each")
    found.append(f"loss: verl's, {method.normaliser.name} normaliser, rates by schedule {in_words(method.schedule)}")
    return found + [f"biased: {reason}" for reason in reasons]
