"""A plan: what a run costs under each option, with intervals, and what is worth pruning. Records in, records out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from answer_judge.statistics import Estimate
from dppo.pruning.ceiling import COMPLETION_AUTO, GRID, PROMPT_AUTO, TAIL, Auto
from dppo_lab.planning.costs import Costs
from dppo_lab.planning.records import Length, Option, Prices, Seconds, Step, Work
from dppo_lab.planning.work import completion_ceiling, prompt_ceiling, work_of
from dppo_lab.planning.workload import Workload

SMALL_GROUP = 2
"""Completions of a prompt where its history is the baseline."""
RATES = (0.5, 0.3)
"""Share of completions and of prompts to prune where a configuration gives no rates."""
EXACT = 2
"""Place of the option that prunes nothing and skips what has no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a plan is computed from, as measured or as in one resample."""

    workload: Workload
    costs: Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One option of a plan. The ends of an interval equal its value where nothing was sampled."""

    option: Option
    work: Work
    seconds: Seconds
    """Of an optimizer step whose prompts have a history."""
    per_step: Estimate
    """Their sum, s."""
    speedup: Estimate
    """Seconds of a step of TRL over these, at the same number of steps and so at another noise."""
    noise: Estimate
    """Variance of the gradient over that of TRL's step, at its largest: second moments."""
    hours: Estimate
    """Of the run, its first epoch unpruned."""
    equal_hours: Estimate
    """The same, times the noise: for as many steps as give the noise of TRL's run."""
    completions: float
    """Rolled out until the noise is that of TRL's run."""
    tokens: float
    """Generated and forwarded until then."""
    price: float | None
    """Of ``hours``, in the currency of the price of a GPU-hour; None where that is not known."""
    kilowatt_hours: float | None
    """Of ``hours``; None where no power is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether a level is worth pruning, and at which rate."""

    level: str
    """``prompts`` or ``completions``."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run costs under each option, and what is worth pruning."""

    title: str
    source: str
    """Where the figures are from."""
    estimate: bool
    """Whether they were given by hand, and nothing was measured."""
    step: Step
    length: Length
    prices: Prices
    figures: Figures
    rows: tuple[PlanLine, ...]
    update_free: Estimate
    """What an unpruned step would gain if its update were free (Amdahl): the most that pruning completions can."""
    rollout_free: Estimate
    """The same for its rollouts."""
    advice: tuple[Advice, ...]
    """Of prompts, then of completions."""
    method: Mapping[str, Any]
    """Fields to write with the advised rates: a method that prunes, where the configuration's own does not."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """What may be pruned."""

    name: str
    at: Callable[[float], Option]
    """The option that prunes this level alone, at a rate."""
    ceiling: Callable[[Workload, Step], float]
    auto: Auto
    """Which gain is worth having."""


PROMPTS = Level("prompts", lambda rate: Option(name="prompts", prompt_rate=rate), prompt_ceiling, PROMPT_AUTO)
COMPLETIONS = Level(
    "completions", lambda rate: Option(name="completions", completion_rate=rate), completion_ceiling, COMPLETION_AUTO
)


def options(completion_rate: float, prompt_rate: float) -> tuple[Option, ...]:
    """The options of a plan, TRL's own trainer first."""
    both = Option(
        name=f"both {prompt_rate:g}, {completion_rate:g}", completion_rate=completion_rate, prompt_rate=prompt_rate
    )
    return (
        Option(name="TRL", layout="padded", forwarded="all"),
        Option(name="dense rows", forwarded="all"),
        Option(name="without zero advantages"),
        Option(name=f"completions {completion_rate:g}", completion_rate=completion_rate),
        Option(name=f"prompts {prompt_rate:g}", prompt_rate=prompt_rate),
        both,
        Option(name=f"history, groups of {SMALL_GROUP}", baseline="history", group=SMALL_GROUP),
        replace(both, name="all together", baseline="history", group=SMALL_GROUP),
    )


def seconds_of(figures: Figures, step: Step, option: Option, gpus: int) -> Seconds:
    """Seconds of a step by phase."""
    return figures.costs.seconds(work_of(figures.workload, step, option), option, gpus)


def make_plan(
    figures: Figures,
    samples: Sequence[Figures],
    step: Step,
    length: Length,
    prices: Prices,
    rates: tuple[float | None, float | None],
    *,
    title: str,
    source: str,
    method: Mapping[str, Any] = MappingProxyType({}),
    estimate: bool = False,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan of a run, with intervals from ``samples``: resamples of what was measured, none where nothing was.

    ``rates`` are shares of completions and of prompts that the configuration prunes, each in (0, 1), None for
    ``RATES``; ``method`` has the fields of one that prunes, where the configuration's own does not.
    """
    completion_rate, prompt_rate = (own or other for own, other in zip(rates, RATES, strict=True))
    chosen = options(completion_rate, prompt_rate)
    worlds = [figures, *samples]
    first = [seconds_of(world, step, chosen[0], prices.gpus).total for world in worlds]
    exact = [seconds_of(world, step, chosen[EXACT], prices.gpus) for world in worlds]
    return Plan(
        title=title,
        source=source,
        estimate=estimate,
        step=step,
        length=length,
        prices=prices,
        figures=figures,
        rows=tuple(_row(worlds, first, step, option, length, prices) for option in chosen),
        update_free=_interval([each.total / (each.total - each.update) for each in exact]),
        rollout_free=_interval([each.total / (each.total - each.rollout) for each in exact]),
        advice=(
            _advice(worlds, step, prices.gpus, PROMPTS, length, rates[1]),
            _advice(worlds, step, prices.gpus, COMPLETIONS, length, rates[0]),
        ),
        method=dict(method),
        notes=tuple(notes),
    )


def gain(figures: Figures, step: Step, option: Option, gpus: int) -> float:
    """Seconds to equal noise of a step without pruning over those under an option, >= 0."""
    work = work_of(figures.workload, step, option)
    paid = figures.costs.seconds(work, option, gpus).total * work.noise
    without = seconds_of(figures, step, replace(option, completion_rate=0.0, prompt_rate=0.0), gpus).total
    return without / paid


def _row(
    worlds: Sequence[Figures], first: Sequence[float], step: Step, option: Option, length: Length, prices: Prices
) -> PlanLine:
    works = [work_of(world.workload, step, option) for world in worlds]
    seconds = [world.costs.seconds(work, option, prices.gpus) for world, work in zip(worlds, works, strict=True)]
    before = replace(option, prompt_rate=0.0)
    early = [seconds_of(w, step, before, prices.gpus) for w in worlds] if option.prompt_rate else seconds
    pairs = zip(early, seconds, strict=True)
    later = length.steps - length.first_epoch
    hours = [(length.first_epoch * new.total + later * old.total) / 3600 for new, old in pairs]
    steps_to_equal = length.steps * works[0].noise
    return PlanLine(
        option=option,
        work=works[0],
        seconds=seconds[0],
        per_step=_interval([each.total for each in seconds]),
        speedup=_interval([whole / each.total for whole, each in zip(first, seconds, strict=True)]),
        noise=_interval([work.noise for work in works]),
        hours=_interval(hours),
        equal_hours=_interval([hour * work.noise for hour, work in zip(hours, works, strict=True)]),
        completions=works[0].completions * steps_to_equal,
        tokens=(works[0].generated + works[0].forwarded) * steps_to_equal,
        price=None if prices.gpu_hour is None else hours[0] * prices.gpus * prices.gpu_hour,
        kilowatt_hours=None if prices.watts is None else hours[0] * prices.gpus * prices.watts / 1000,
    )


def _advice(
    worlds: Sequence[Figures], step: Step, gpus: int, level: Level, length: Length, own: float | None
) -> Advice:
    """The smallest rate with nearly the best gain; 0 if its interval starts below what is worth having, as ``auto``."""
    rates = [round(GRID * k, 6) for k in range(1, int(level.auto.largest / GRID + 1e-6) + 1)]
    gains = {rate: gain(worlds[0], step, level.at(rate), gpus) for rate in rates}
    best = max(gains.values())
    enough = [rate for rate in rates if gains[rate] >= 1 + level.auto.enough * (best - 1)]
    rate = enough[0] if best > 1 else max(rates, key=lambda each: gains[each])

    def gain_at(rate: float) -> Estimate:
        return _interval([gain(world, step, level.at(rate), gpus) for world in worlds])

    found = gain_at(rate)
    no_history = level is PROMPTS and length.first_epoch >= length.steps
    return Advice(
        level=level.name,
        rate=rate if found.low >= level.auto.least_gain and not no_history else 0.0,
        gain=found,
        ceiling=_interval([level.ceiling(world.workload, step) for world in worlds]),
        why="the run is over before prompts come back, and none has a history: nothing can be pruned"
        if no_history
        else _why(rate, found, best, level.auto.least_gain),
        own=own,
        own_gain=None if own is None else gain_at(own),
    )


def _why(rate: float, found: Estimate, best: float, least: float) -> str:
    """The advice in words."""
    if best <= 1:
        return "at equal noise no rate gains anything: what is pruned costs more in noise than it saves in seconds"
    measured = f"a rate of {rate:g} gains {found.value:.2f}x to equal noise, at least {found.low:.2f}x"
    return f"{measured}, and {least:g}x is the least worth having" if found.low < least else measured


def _interval(values: Sequence[float]) -> Estimate:
    """The first value, and an interval that holds it and 95% of the others."""
    value, others = float(values[0]), values[1:]
    low, high = np.quantile(others, (TAIL, 1 - TAIL)).tolist() if len(others) else (value, value)
    return Estimate(value, min(low, value), max(high, value))
