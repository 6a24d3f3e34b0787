"""The options of a run, ``trainer.v1.sampler.sampler_kwargs.pruning``, and the ``Method`` they ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dppo.errors import ConfigError, did_you_mean, in_words, raise_problems
from dppo.methods import ALL_PROMPTS, ALL_TOKENS, METHODS, NO_PRUNING, Method
from dppo.methods.from_settings import pruned, with_rollout_cost
from dppo.methods.own import DECIDED, is_own, method_named, own_settings, settle
from dppo.methods.settings import (
    bias_problems,
    fill_in,
    fill_problems,
    method_problems,
    read_rates,
    setting_problems,
)
from dppo.objective import DAPO_TOKENS, DR_GRPO, GRPO_MEAN, LUSPO, WHOLE_GROUPS, Normaliser
from dppo.pruning import Pruning
from dppo.settings import DEFAULT_METHOD, VerlSettings

WHERE = "trainer.v1.sampler.sampler_kwargs.pruning"
"""Where options are in verl's configuration; verl hands that dictionary on without looking into it."""

TOKEN_SUM = Normaliser(
    name="token-sum", per_sequence=False, denominator=lambda sequences, tokens, max_tokens: 1.0, prompt_exact=True
)
"""Divides by nothing."""
TOKEN_MEAN = replace(
    DAPO_TOKENS,
    prompt_exact=False,
    reason="verl counts the tokens that were rolled out, so the count of all is estimated: a ratio, biased O(1/n)",
)
"""Divides by the tokens that verl counts."""
NORMALISERS = {
    "token-mean": TOKEN_MEAN,
    "token-sum": TOKEN_SUM,
    "seq-mean-token-mean": GRPO_MEAN,
    "seq-mean-token-sum": LUSPO,
    "seq-mean-token-sum-norm": DR_GRPO,
}
"""What verl's ``loss_agg_mode`` divides by; its denominators are used, these say what is exact and how scores count."""


@dataclass(kw_only=True)
class PruningSettings(VerlSettings):
    """``VerlSettings``, checked and with the method's own values where they are left out.

    Raises:
        ConfigError: listing every option that is out of range or contradicts another.
    """

    def __post_init__(self) -> None:
        read_rates(self)
        raise_problems(WHERE, setting_problems(self))
        self.method = self.method or DEFAULT_METHOD
        base, own = self.base, is_own(self.method)
        problems = settle(self, base, own_settings(base), DECIDED) if own else []
        if not own:
            fill_in(self, base)
        problems += fill_problems(self) if own else method_problems(self, base)
        raise_problems(WHERE, problems + self._unserved(base) + (_objective_problems(base) if own else []))
        raise_problems(WHERE, bias_problems(self, self.drops(base, sampler_log_probs=True).selection_bias))

    @property
    def base(self) -> Method:
        """The preset, or the method of one's own, that ``method`` names."""
        return method_named(self.method)

    def drops(self, method: Method, *, sampler_log_probs: bool) -> Method:
        """A method with the run's pruning: that of a preset by these settings, and that of one's own as it is."""
        if not is_own(self.method):
            return pruned(self, method, sampler_log_probs=sampler_log_probs)
        return method if self.rollout_cost is None else with_rollout_cost(method, self.rollout_cost)

    def _unserved(self, base: Method) -> list[str]:
        """What verl does by itself, or its options say."""
        problems = []
        if base.rounds is not None:
            problems.append(
                f"method={self.method!r} rolls prompts out in rounds, which verl does by itself. Write method=dppo, "
                "with algorithm.filter_groups.enable=True for rounds."
            )
        if self.head_prune_rate:
            problems.append(
                f"head_prune_rate={self.head_prune_rate:g} (method={self.method!r}): verl's engine computes the head "
                "for every token of a row, so nothing would be saved. Write head_prune_rate=0; token_prune_rate=0.5 "
                "shortens the rows."
            )
        of_verl = base.fixes - ({"advantages"} if base.advantages.from_history else set())
        if of_verl or base.statistics is not WHOLE_GROUPS:
            own = ", ".join(sorted(of_verl)) or "advantages"
            problems.append(
                f"method={self.method!r} brings an objective of its own ({own}), and here verl's options say the "
                "objective. Write method=dppo, and choose it by actor.policy_loss.loss_mode, actor.loss_agg_mode and "
                "algorithm.adv_estimator."
            )
        return problems


def _objective_problems(own: Method) -> list[str]:
    """One sentence per part of the objective that a method of one's own changes, which verl's options describe."""
    plain, options = Method(name="plain", paper=""), "actor.policy_loss.loss_mode, actor.loss_agg_mode and use_kl_loss"
    names = ["token_loss", "normaliser", "kl", "beta", "entropy_coef"]
    if not own.advantages.from_history:
        names.append("advantages")
    return [
        f"method {own.name!r} has {name} of its own, and here verl's options say the objective ({options}). "
        f"Leave it out: replace(method, {name}=METHODS['dppo'].{name})."
        for name in names
        if getattr(own, name) != getattr(plain, name) and name not in own.fixes
    ]


def read_settings(options: Mapping[str, Any], *, seed: int | None = None) -> PruningSettings:
    """The settings in what is under ``trainer.v1.sampler.sampler_kwargs.pruning``, by name.

    ``seed`` is ``data.seed``, which orders verl's prompts: it holds where ours is left out.

    Raises:
        ConfigError: an option that does not exist, or as for ``PruningSettings``.
    """
    known = [field.name for field in fields(PruningSettings)]
    if not isinstance(options, Mapping):
        raise ConfigError(f"{WHERE}={options!r} holds no options. Write {WHERE}.method=dppo.")
    for name in options:
        if name not in known:
            raise ConfigError(f"{WHERE}.{name} is no option. {did_you_mean(name, known)}There are {', '.join(known)}.")
    return PruningSettings(**{"seed": seed or 0, **options})


def unreadable_options(get: Callable[[str], Any]) -> list[str]:
    """One sentence per option of verl that a method is made of and that cannot be read as what it is.

    ``get`` gives the value of an option by its path in verl's configuration, None where there is none.
    """
    actor, problems = "actor_rollout_ref.actor", []
    mode, coefficient = get(f"{actor}.loss_agg_mode"), f"{actor}.kl_loss_coef"
    if mode not in NORMALISERS:
        problems.append(
            f"{actor}.loss_agg_mode={mode} is not one of {', '.join(NORMALISERS)}. "
            f"Write {actor}.loss_agg_mode=token-mean."
        )
    numbers = {f"{actor}.entropy_coeff": 0.0, f"{actor}.policy_loss.dro_beta": 0.0}
    if get(f"{actor}.use_kl_loss"):
        numbers[coefficient] = 0.001
        if get(coefficient) is None:
            problems.append(f"{coefficient}=null with use_kl_loss=True. Write {coefficient}=0.001.")
    for name, example in numbers.items():
        value = get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            problems.append(f"{name}={value!r} is no number. Write {name}={example}.")
    return problems


def method_of(
    settings: PruningSettings,
    *,
    loss_agg_mode: str,
    penalty: float,
    entropy_coef: float,
    sampler_log_probs: bool = True,
    filters_groups: bool = False,
) -> Method:
    """The method of a run: pruning from the settings, of the objective what decides which completions have a gradient.

    Args:
        settings: of the run.
        loss_agg_mode: verl's.
        penalty: coefficient of what ignores the advantage, such as the KL term, >= 0.
        entropy_coef: of the entropy bonus.
        sampler_log_probs: whether the probabilities of sampled tokens are known when a step is planned.
        filters_groups: whether verl takes prompts until enough groups differ in reward, as DAPO does: its bias.
    """
    base = settings.base
    objective = replace(base, normaliser=NORMALISERS[loss_agg_mode], beta=penalty, entropy_coef=entropy_coef)
    method = settings.drops(objective, sampler_log_probs=sampler_log_probs)
    return replace(method, rounds=METHODS["dapo"].rounds) if filters_groups else method


def keeps_all(method: Method) -> bool:
    """Whether a method leaves the whole step to verl: it drops nothing, and has no advantages of its own."""
    level = method.completions
    plain = isinstance(level, Pruning) and replace(level, score=NO_PRUNING.score) == NO_PRUNING
    return plain and (method.prompts, method.tokens, method.advantages.from_history) == (ALL_PROMPTS, ALL_TOKENS, False)


def biases(method: Method, optimizer_steps: int, ahead: float | None) -> tuple[str, ...]:
    """Why the expected gradient of a run is not the full batch's; ``optimizer_steps`` are those of a draw of prompts.

    ``ahead`` blocks are asked for ahead, whose groups may be trained in several steps; None where the prompts of a step
    are asked for when it begins.
    """
    return method.biases(optimizer_steps if ahead is None else max(optimizer_steps, 2))


def lines(
    method: Method,
    *,
    prompts: int,
    generations: int,
    optimizer_steps: int,
    parts: int = 1,
    ahead: float | None = None,
) -> list[str]:
    """What a run will do, said at its start.

    ``prompts`` are those of a block, trained on in ``optimizer_steps`` and drawn in ``parts``, ``generations`` the
    completions of each; ``ahead`` is as for ``biases``.
    """
    reasons = biases(method, optimizer_steps // parts, ahead)
    found = [f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}"]
    if keeps_all(method):
        found.append("completions: all with a gradient, in verl's own mini-batches and our order of prompts")
    else:
        share = "by their history" if method.sizes is not None else f"{generations} each"
        found.append(f"prompts: {method.prompts if method.prompts.rate else 'all'} of a block of {prompts}, {share}")
        kept = f"{1 - method.completions.rate:.0%} of those with a gradient"
        if getattr(method.completions, "auto", None) is not None:
            kept = f"at least {kept}, chosen in each step"
        found.append(f"completions: {kept}, score {method.score_name}")
        if method.tokens.active:
            found.append(f"tokens: {method.tokens}")
        if optimizer_steps > 1:
            found.append(f"{optimizer_steps} optimizer steps a block, completions dealt and drawn anew for each")
            if method.prompts.rate and parts > 1:
                found.append(f"prompts are drawn for each of {parts} mini-batches")
    if ahead is not None:
        found.append(
            f"prompts are asked for {ahead:g} blocks ahead, each weighted by the probability it was asked with"
        )
    found.append(f"loss: verl's, {method.normaliser.name} normaliser, rates by schedule {in_words(method.schedule)}")
    return found + [f"biased: {reason}" for reason in reasons]


def order_lines(method: Method, waits_for: str, rollout: Any) -> list[str]:
    """When a step is planned, and which option of verl gives a better score, said at a run's start.

    ``waits_for`` says why passes go over all rows first, ``rollout`` is verl's ``actor_rollout_ref.rollout``.
    """
    if waits_for:
        return [f"order: verl's passes go over all rows, then the draw: {waits_for}"]
    found = ["order: rewards, draw, then old log-probabilities, reference and update over the rows kept"]
    if method.completions.rate and not rollout.calculate_log_probs:
        found.append(
            f"score {method.score_name}: samplers return no probabilities. "
            "actor_rollout_ref.rollout.calculate_log_probs=True gives the better one, by uncertainty"
        )
    return found
