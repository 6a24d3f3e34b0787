"""What is worth pruning: each level's gain at equal noise, by the rule of ``auto``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dppo.pruning.ceiling import COMPLETION_AUTO, PROMPT_AUTO, Auto, rates_to
from dppo.pruning.tokens import TOKEN_AUTO
from dppo_lab.planning.figures import Figures, gain, interval
from dppo_lab.planning.records import Length, Option, Step
from dppo_lab.planning.work import UNPRUNED, completion_ceiling, has_gradient, prompt_ceiling
from dppo_lab.statistics import Estimate

OWN = ("completions", "prompts", "tokens", "head")
"""Levels in the order of ``Rates``."""
Rates = tuple[float | None, float | None, float | None, float | None]
"""Shares of completions, prompts, tokens behind a cut and tokens kept from the head, each in (0, 1), None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether a level is worth pruning, and at which rate."""

    level: str
    """``prompts``, ``completions``, ``tokens`` (behind a cut) or ``head`` (kept from it)."""
    rate: float
    """What is recommended, in [0, 1); 0 leaves the level off."""
    gain: Estimate
    """Seconds to equal noise of the step without this pruning over those with it, at the best rate of a grid."""
    ceiling: Estimate
    """What choosing can save at most (``dppo.pruning.selection_ceiling``)."""
    why: str
    own: float | None
    """The rate that the configuration has; None where it has no number above 0."""
    own_gain: Estimate | None
    """``gain`` at that rate."""


@dataclass(frozen=True, slots=True)
class Level:
    """What may be pruned."""

    name: str
    ceiling: Callable[[Figures, Step], float]
    auto: Auto
    """Which gain is worth having."""
    base: Option = UNPRUNED
    """The option that it is compared with."""

    def at(self, rate: float) -> Option:
        """The option that prunes this level at a rate."""
        return replace(self.base, **{f"{self.name.removesuffix('s')}_rate": rate})


def _token_ceiling(level: str) -> Callable[[Figures, Step], float]:
    return lambda figures, step: 1.0 if figures.tokens is None else figures.tokens.ceiling(level)


PROMPTS = Level("prompts", lambda figures, step: prompt_ceiling(figures.workload, step), PROMPT_AUTO)
COMPLETIONS = Level("completions", lambda figures, step: completion_ceiling(figures.workload, step), COMPLETION_AUTO)
TOKENS = Level("tokens", _token_ceiling("tokens"), TOKEN_AUTO)
HEAD = Level("head", _token_ceiling("head"), TOKEN_AUTO)


def advices(
    worlds: Sequence[Figures], step: Step, gpus: int, length: Length, rates: Rates, *, by_token: bool
) -> tuple[Advice, ...]:
    """Of each level; completions and cuts do the same by other means, so one of them is left off."""
    own: dict[str, float | None] = dict(zip(OWN, rates, strict=True))

    def advised(level: Level) -> Advice:
        return _advice(worlds, step, gpus, level, length, own[level.name])

    prompts, completions = advised(PROMPTS), advised(COMPLETIONS)
    if not by_token:
        return prompts, completions
    tokens, other = advised(TOKENS), "{0} gain more: {1:.2f}x, and both at once are one draw too many"
    if tokens.rate and (not completions.rate or tokens.gain.value > completions.gain.value):
        if completions.rate:
            completions = replace(completions, rate=0.0, why=other.format("cuts", tokens.gain.value))
    elif tokens.rate:
        tokens = replace(tokens, rate=0.0, why=other.format("whole completions", completions.gain.value))
    base = Option(name="so far", completion_rate=completions.rate, token_rate=tokens.rate)
    head = advised(replace(HEAD, base=base))
    if worlds[0].costs.head_token is None:
        head = replace(head, rate=0.0, why="what the head costs was not told apart")
    return prompts, completions, tokens, head


def _advice(
    worlds: Sequence[Figures], step: Step, gpus: int, level: Level, length: Length, own: float | None
) -> Advice:
    """The smallest rate with nearly the best gain; 0 if its interval starts below what is worth having, as ``auto``."""
    rates = rates_to(level.auto.largest)
    gains = {rate: gain(worlds[0], step, level.at(rate), gpus, level.base) for rate in rates}
    best = max(gains.values())
    enough = [rate for rate in rates if gains[rate] >= 1 + level.auto.enough * (best - 1)]
    rate = enough[0] if best > 1 else max(rates, key=lambda each: gains[each])

    def gain_at(rate: float) -> Estimate:
        return interval([gain(world, step, level.at(rate), gpus, level.base) for world in worlds])

    found = gain_at(rate)
    nothing = ""
    if not has_gradient(worlds[0].workload, step):
        nothing = "no group has answers of differing reward: nothing is learned here, and nothing says what to prune"
    elif level is PROMPTS and length.first_epoch >= length.steps:
        nothing = "the run is over before prompts come back, and none has a history: nothing can be pruned"
    return Advice(
        level=level.name,
        rate=rate if found.low >= level.auto.least_gain and not nothing else 0.0,
        gain=found,
        ceiling=interval([level.ceiling(world, step) for world in worlds]),
        why=nothing or _why(rate, found, best, level.auto.least_gain),
        own=own,
        own_gain=None if own is None else gain_at(own),
    )


def _why(rate: float, found: Estimate, best: float, least: float) -> str:
    """The advice in words."""
    if best <= 1:
        return "at equal noise no rate gains anything: what is pruned costs more in noise than it saves in seconds"
    measured = f"a rate of {rate:g} gains {found.value:.2f}x to equal noise, at least {found.low:.2f}x"
    return f"{measured}, and {least:g}x is the least worth having" if found.low < least else measured
