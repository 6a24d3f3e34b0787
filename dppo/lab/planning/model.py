"""A plan: seconds and hours of a run under each option, with intervals, and the advised rate of each level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dppo.lab.planning.costs import Figures, gain, interval
from dppo.lab.planning.records import Length, Option, Seconds, Step, Work
from dppo.lab.planning.work import UNPRUNED, full_moment, work_of
from dppo.lab.statistics import Estimate
from dppo.pruning.ceiling import COMPLETION_AUTO, PROMPT_AUTO, rates_to

LEVELS = {"prompts": PROMPT_AUTO, "completions": COMPLETION_AUTO}
"""Units that may be pruned, and the rule of ``auto`` for their rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advised rate of a level."""

    level: str
    """``prompts`` or ``completions``."""
    rate: float
    """In [0, 1); 0 leaves the level off."""
    gain: Estimate
    """Seconds to equal noise of the step without this pruning over those with it, at the best rate of a grid."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One option of a plan."""

    option: Option
    work: Work
    seconds: Seconds
    """Seconds of an optimizer step whose prompts have a history; ``per_step`` is their sum."""
    per_step: Estimate
    speedup: Estimate
    """Seconds of a step of TRL over these, at the same number of steps and so at another noise."""
    noise: Estimate
    """Variance of the gradient over that of TRL's step, at its largest: second moments."""
    hours: Estimate
    """Hours of the run, its first epoch unpruned; ``equal_hours`` for as many steps as give the noise of TRL's run."""
    equal_hours: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run under each option, and the advised rates."""

    title: str
    source: str
    """Origin of the figures."""
    step: Step
    length: Length
    processes: int
    figures: Figures
    rows: tuple[PlanLine, ...]
    advice: tuple[Advice, ...]
    """Of prompts, then of completions."""
    method: Mapping[str, Any]
    """Fields to write with the advised rates: a method that prunes, if the configuration's own does not."""
    notes: tuple[str, ...] = ()


def options(completion_rate: float, prompt_rate: float) -> tuple[Option, ...]:
    """The options of a plan, TRL's own trainer first."""
    completions = Option(name=f"completions {completion_rate:g}", completion_rate=completion_rate)
    return (
        Option(name="TRL", layout="padded", forwarded="all"),
        Option(name="dense rows", forwarded="all"),
        Option(name="without zero advantages"),
        completions,
        Option(name=f"prompts {prompt_rate:g}", prompt_rate=prompt_rate),
        replace(completions, name=f"both {prompt_rate:g}, {completion_rate:g}", prompt_rate=prompt_rate),
    )


def make_plan(
    figures: Figures,
    step: Step,
    length: Length,
    *,
    rates: Mapping[str, float],
    processes: int,
    samples: Sequence[Figures] = (),
    **about: Any,
) -> Plan:
    """The plan of a run, with intervals from ``samples``: the figures in resamples of what was measured.

    ``rates`` are shares of completions and of prompts that the table prunes, in (0, 1); ``about`` are the other
    fields of a ``Plan``.
    """
    chosen = options(rates["completions"], rates["prompts"])
    worlds = [figures, *samples]
    first = [world.costs.seconds(work_of(world.workload, step, chosen[0]), processes).total for world in worlds]
    return Plan(
        step=step,
        length=length,
        processes=processes,
        figures=figures,
        rows=tuple(_row(worlds, first, step, option, length, processes) for option in chosen),
        advice=tuple(_advice(worlds, step, processes, level, length) for level in LEVELS),
        **about,
    )


def _row(
    worlds: Sequence[Figures], first: Sequence[float], step: Step, option: Option, length: Length, processes: int
) -> PlanLine:
    def of_steps(option: Option) -> tuple[list[Work], list[Seconds]]:
        works = [work_of(world.workload, step, option) for world in worlds]
        return works, [world.costs.seconds(work, processes) for world, work in zip(worlds, works, strict=True)]

    works, seconds = of_steps(option)
    early = length.first_epoch if option.prompt_rate else 0  # no prompt has a history then, and none is pruned
    phases = [(early, *of_steps(replace(option, prompt_rate=0.0))), (length.steps - early, works, seconds)]
    each_world = range(len(worlds))
    hours = [sum(steps * spent[w].total for steps, _, spent in phases) / 3600 for w in each_world]
    equal = [sum(n * work[w].noise * spent[w].total for n, work, spent in phases) / 3600 for w in each_world]
    return PlanLine(
        option=option,
        work=works[0],
        seconds=seconds[0],
        per_step=interval([each.total for each in seconds]),
        speedup=interval([whole / each.total for whole, each in zip(first, seconds, strict=True)]),
        noise=interval([work.noise for work in works]),
        hours=interval(hours),
        equal_hours=interval(equal),
    )


def _advice(worlds: Sequence[Figures], step: Step, processes: int, level: str, length: Length) -> Advice:
    """The smallest rate with nearly the best gain; 0 if its interval starts below ``least_gain``, as ``auto``."""
    auto, field = LEVELS[level], f"{level.removesuffix('s')}_rate"
    option_of = {rate: replace(UNPRUNED, **{field: rate}) for rate in rates_to(auto.largest)}
    gains = {rate: gain(worlds[0], step, option, processes) for rate, option in option_of.items()}
    best = max(gains.values())
    enough = [rate for rate in option_of if gains[rate] >= 1 + auto.enough * (best - 1)]
    rate = enough[0] if best > 1 else max(option_of, key=lambda each: gains[each])
    found = interval([gain(world, step, option_of[rate], processes) for world in worlds])
    if full_moment(worlds[0].workload, step) == 0:
        why = "no group has answers of differing reward, so there is no gradient to prune by"
    elif level == "prompts" and length.first_epoch >= length.steps:
        why = "the run is over before prompts come back, and none has a history"
    elif best <= 1:
        why = "at equal noise no rate gains anything"
    else:
        why = f"a rate of {rate:g} gains {found.value:.2f}x to equal noise, at least {found.low:.2f}x"
        if found.low >= auto.least_gain:
            return Advice(level=level, rate=rate, gain=found, why=why)
        why += f"; {auto.least_gain:g}x is the least worth having"
    return Advice(level=level, rate=0.0, gain=found, why=why)
