"""The options of a run, ``trainer.v1.sampler.sampler_kwargs.pruning``, and the ``Method`` that they describe."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dppo.errors import ConfigError, raise_problems
from dppo.methods import ALL_PROMPTS, ALL_TOKENS, METHODS, NO_PRUNING, Method
from dppo.methods import settings as checks
from dppo.methods.from_settings import pruned, with_rollout_cost
from dppo.methods.own import is_own, method_named
from dppo.objective import DAPO_TOKENS, DR_GRPO, GRPO_MEAN, LUSPO, Normaliser
from dppo.settings import DEFAULT_METHOD, VerlSettings
from dppo.typed import NamedFields, is_number
from dppo.verl.support import ACTOR, AGGREGATION, FILTER, LOSS, OFF, Get, Rule, has_log_probs, refusals

WHERE = "trainer.v1.sampler.sampler_kwargs.pruning"
"""The place of our options in verl's configuration, which verl does not read."""
NORMALISERS = {
    "token-mean": replace(
        DAPO_TOKENS,
        prompt_exact=False,
        reason="verl counts the tokens that were rolled out, so the count of all is estimated: a ratio, biased O(1/n)",
    ),
    "token-sum": Normaliser(
        name="token-sum", per_sequence=False, denominator=lambda sequences, tokens, max_tokens: 1.0, prompt_exact=True
    ),
    "seq-mean-token-mean": GRPO_MEAN,
    "seq-mean-token-sum": LUSPO,
    "seq-mean-token-sum-norm": DR_GRPO,
}
"""Normalisers by verl's ``loss_agg_mode``. verl divides by itself; exactness and scores are read from these."""
KL, KL_COEF, ENTROPY, DRO = (
    f"{ACTOR}.{name}" for name in ("use_kl_loss", "kl_loss_coef", "entropy_coeff", "policy_loss.dro_beta")
)


@dataclass(kw_only=True)
class PruningSettings(NamedFields, VerlSettings):
    """``VerlSettings`` with the method's values for options left out; wrong ones are listed by a ``ConfigError``."""

    def __post_init__(self) -> None:
        checks.read_rates(self)
        raise_problems(WHERE, checks.setting_problems(self))
        self.method = self.method or DEFAULT_METHOD
        base = method_named(self.method)
        raise_problems(WHERE, [*checks.completed(self, base), *self._unserved(base)])
        raise_problems(WHERE, checks.bias_problems(self, self.drops(base, sampler_log_probs=True).selection_bias))

    def drops(self, method: Method, *, sampler_log_probs: bool) -> Method:
        """A method with the run's pruning, which a method of one's own has already."""
        if not is_own(self.method):
            return pruned(self, method, sampler_log_probs=sampler_log_probs)
        return with_rollout_cost(method, self.rollout_cost)

    def _unserved(self, base: Method) -> Iterator[str]:
        """One sentence per part of the method that verl does by itself."""
        named = f"method={self.method!r}"
        if base.rounds is not None:
            yield f"{named} rolls prompts out in rounds, as verl does. Write method=dppo and {FILTER}=True."
        if self.head_prune_rate:
            every = f"head_prune_rate={self.head_prune_rate:g} ({named}): verl computes the head for every token"
            yield f"{every} of a row. Write head_prune_rate=0; token_prune_rate=0.5 shortens the rows."
        history = base.advantages.from_history
        own = [name for name in checks.own_objective(base) if not (history and name == "advantages")]
        if own:
            yield (
                f"{named} has an objective of its own ({', '.join(own)}), and here verl's options set the objective: "
                "actor.policy_loss.loss_mode, loss_agg_mode, use_kl_loss and algorithm.adv_estimator. Write "
                f"method=dppo, or replace(method, {own[0]}=METHODS['dppo'].{own[0]}) for a method of one's own."
            )


def read_settings(options: Mapping[str, Any], *, seed: int | None = None) -> PruningSettings:
    """The settings under ``WHERE``, whose default seed is ``data.seed``; ``ConfigError`` for unknown ones."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"{WHERE}={options!r} holds no options. Write {WHERE}.method=dppo.")
    return PruningSettings(**{"seed": seed or 0, **options})


def method_of(settings: PruningSettings, get: Get) -> Method:
    """The method of a run: pruning from the settings, the rest from verl, whose wrong options are a ``ConfigError``."""
    problems = refusals(get, _method_rules(settings, get))
    raise_problems(f"trainer.v1.trainer_mode={get('trainer.v1.trainer_mode')}", problems)
    penalty, entropy = get(KL_COEF) if get(KL) else 0.0, get(ENTROPY) or 0.0
    if get(LOSS) == "dro":
        penalty += get(DRO) or 0.0  # its square pulls at completions without an advantage too
    base, normaliser = method_named(settings.method), NORMALISERS[get(AGGREGATION)]
    objective = replace(base, normaliser=normaliser, beta=float(penalty), entropy_coef=float(entropy))
    method = settings.drops(objective, sampler_log_probs=has_log_probs(get))
    return replace(method, rounds=METHODS["dapo"].rounds) if get(FILTER) else method


def _method_rules(settings: PruningSettings, get: Get) -> Iterator[Rule]:
    """Rules of the options that a method is made of, and of verl's filter of groups."""
    yield AGGREGATION, tuple(NORMALISERS), f"it must be one of {', '.join(NORMALISERS)}", "token-mean"
    needed = [(KL_COEF, (), 0.001)] if get(KL) else []
    for name, empty, example in (*needed, (ENTROPY, (None,), 0.0), (DRO, (None,), 0.0)):
        if not is_number(get(name)):
            yield name, empty, "it must be a number", example
    if not get(FILTER):
        return
    if settings.prompt_prune_rate:
        yield FILTER, OFF, "it takes prompts that were not drawn, and prompt_prune_rate draws them", False
    if method_named(settings.method).advantages.from_history:
        yield FILTER, OFF, f"the baseline of method={settings.method} needs every group", False
    if not settings.accept_bias:
        instead = f"False, or +{WHERE}.accept_bias=True to train with it on purpose"
        yield FILTER, OFF, "it is biased: groups of equal rewards are replaced by others", instead


def keeps_all(method: Method) -> bool:
    """True if a method leaves the step to verl: it drops nothing, and has no advantages of its own."""
    level = method.drawn
    plain = level is not None and replace(level, score=NO_PRUNING.score) == NO_PRUNING
    return plain and (method.prompts, method.tokens, method.advantages.from_history) == (ALL_PROMPTS, ALL_TOKENS, False)


def biases(method: Method, optimizer_steps: int, ahead: float | None) -> tuple[str, ...]:
    """Reasons for a biased gradient, by the optimizer steps of a draw of prompts and the blocks requested ``ahead``."""
    # Groups that are requested ahead may be trained in several steps.
    return method.biases(optimizer_steps if ahead is None else max(optimizer_steps, 2))


def lines(
    method: Method, *, prompts: int, generations: int, optimizer_steps: int, parts: int = 1, ahead: float | None = None
) -> list[str]:
    """Lines about a run, printed at its start.

    A block of ``prompts``, each with ``generations`` completions, is drawn in ``parts`` and trained on in
    ``optimizer_steps``. ``ahead`` is the number of blocks that are requested ahead; None without.
    """
    reasons = biases(method, optimizer_steps // parts, ahead)
    each = "by their history" if method.sizes is not None else f"{generations} each"
    drawn = method.prompts if method.prompts.rate else "all"
    found = checks.start_lines(method, reasons, f"{drawn} of a block of {prompts}, {each}")
    if keeps_all(method):
        found.append("order: completions with a gradient, in verl's own mini-batches")
    elif optimizer_steps > 1:
        found.append(f"{optimizer_steps} optimizer steps a block, completions dealt and drawn anew for each")
        if method.prompts.rate and parts > 1:
            found.append(f"prompts are drawn for each of {parts} mini-batches")
    if ahead is not None:
        found.append(f"prompts are requested {ahead:g} blocks ahead, each weighted by the probability of its draw")
    found.append(f"loss: verl's, {method.normaliser.name} normaliser")
    return found + [f"biased: {reason}" for reason in reasons]
