"""A plan: what a run costs under each option, with intervals, and what is worth pruning. Records in, records out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dppo.pruning.ceiling import COMPLETION_AUTO, GRID, LARGEST, PROMPT_AUTO, TAIL, Auto
from dppo_lab.planning.costs import Seconds
from dppo_lab.planning.outcome import Advice, Figures, Interval, Length, Plan, Prices, Row
from dppo_lab.planning.records import Option, Step
from dppo_lab.planning.work import completion_ceiling, prompt_ceiling, work_of
from dppo_lab.planning.workload import Workload

SMALL_GROUP = 2
"""Completions of a prompt where its history is the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What may be pruned."""

    name: str
    at: Callable[[float], Option]
    """The option that prunes it at a rate, and nothing else."""
    ceiling: Callable[[Workload, Step], float]
    auto: Auto
    """What is worth having."""


PROMPTS = Level(
    name="prompts",
    at=lambda rate: Option(name="prompts", prompt_rate=rate),
    ceiling=prompt_ceiling,
    auto=PROMPT_AUTO,
)
COMPLETIONS = Level(
    name="completions",
    at=lambda rate: Option(name="completions", completion_rate=rate),
    ceiling=completion_ceiling,
    auto=COMPLETION_AUTO,
)


def options(completion_rate: float, prompt_rate: float, group: int = SMALL_GROUP) -> tuple[Option, ...]:
    """The options of a plan, TRL's own trainer first.

    Args:
        completion_rate: share of completions with a gradient to prune.
        prompt_rate: share of prompts with a history to prune.
        group: completions of a prompt where its history is the baseline.
    """
    return (
        Option(name="TRL", layout="padded", forwarded="all"),
        Option(name="dense rows", forwarded="all"),
        Option(name="without zero advantages"),
        Option(name=f"completions {completion_rate:g}", completion_rate=completion_rate),
        Option(name=f"prompts {prompt_rate:g}", prompt_rate=prompt_rate),
        Option(
            name=f"both {prompt_rate:g}, {completion_rate:g}", completion_rate=completion_rate, prompt_rate=prompt_rate
        ),
        Option(name=f"history, groups of {group}", baseline="history", group=group),
        Option(
            name="all together",
            completion_rate=completion_rate,
            prompt_rate=prompt_rate,
            baseline="history",
            group=group,
        ),
    )


EXACT = 2
"""Place of the option that prunes nothing and skips what has no gradient."""


def seconds_of(figures: Figures, step: Step, option: Option, gpus: int) -> Seconds:
    """Seconds of a step by phase.

    Args:
        figures: workload and costs.
        step: sizes.
        option: how it is taken.
        gpus: that it runs on.
    """
    return figures.costs.seconds(work_of(figures.workload, step, option), option, gpus)


def make_plan(
    figures: Figures,
    samples: Sequence[Figures],
    step: Step,
    length: Length,
    prices: Prices,
    rates: tuple[float, float],
    *,
    title: str,
    source: str,
    estimate: bool = False,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan of a run.

    Args:
        figures: workload and costs.
        samples: the same as resamples of a pilot have them, for intervals; none where nothing was sampled.
        step: sizes of a step.
        length: of the run.
        prices: of its GPUs.
        rates: share of completions and of prompts to prune, each in (0, 1).
        title: model and data in a few words.
        source: where the figures are from.
        estimate: whether they were given by hand.
        notes: what is special about them.
    """
    chosen = options(*rates)
    worlds = [figures, *samples]
    first = [seconds_of(world, step, chosen[0], prices.gpus).total for world in worlds]
    rows = tuple(_row(worlds, first, step, option, length, prices) for option in chosen)
    exact = [seconds_of(world, step, chosen[EXACT], prices.gpus) for world in worlds]
    levels = (PROMPTS, COMPLETIONS)
    return Plan(
        title=title,
        source=source,
        estimate=estimate,
        step=step,
        length=length,
        prices=prices,
        figures=figures,
        rows=rows,
        update_free=_interval([each.total / (each.total - each.update) for each in exact]),
        rollout_free=_interval([each.total / (each.total - each.rollout) for each in exact]),
        advice=tuple(_advice(worlds, step, prices.gpus, level, length) for level in levels),
        notes=tuple(notes),
    )


def gain(figures: Figures, step: Step, option: Option, gpus: int) -> float:
    """Seconds to equal noise of a step without pruning over those under an option, >= 0.

    Args:
        figures: workload and costs.
        step: sizes.
        option: what is pruned.
        gpus: that it runs on.
    """
    work = work_of(figures.workload, step, option)
    paid = figures.costs.seconds(work, option, gpus).total * work.noise
    without = seconds_of(figures, step, replace(option, completion_rate=0.0, prompt_rate=0.0), gpus).total
    return without / paid


def _row(
    worlds: Sequence[Figures], first: Sequence[float], step: Step, option: Option, length: Length, prices: Prices
) -> Row:
    works = [work_of(world.workload, step, option) for world in worlds]
    seconds = [world.costs.seconds(work, option, prices.gpus) for world, work in zip(worlds, works, strict=True)]
    before = replace(option, prompt_rate=0.0)
    early = [seconds_of(w, step, before, prices.gpus) for w in worlds] if option.prompt_rate else seconds
    pairs = zip(early, seconds, strict=True)
    later = length.steps - length.first_epoch
    hours = [(length.first_epoch * new.total + later * old.total) / 3600 for new, old in pairs]
    steps_to_equal = length.steps * works[0].noise
    return Row(
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
    worlds: Sequence[Figures],
    step: Step,
    gpus: int,
    level: Level,
    length: Length,
) -> Advice:
    """The smallest rate with nearly the best gain, off where its lower end is not worth having: as ``auto`` chooses."""
    rates = [round(GRID * k, 6) for k in range(1, int(LARGEST / GRID + 1e-6) + 1)]
    gains = {rate: gain(worlds[0], step, level.at(rate), gpus) for rate in rates}
    best = max(gains.values())
    enough = [rate for rate in rates if gains[rate] >= 1 + level.auto.enough * (best - 1)]
    rate = enough[0] if best > 1 else max(rates, key=lambda each: gains[each])
    found = _interval([gains[rate]] + [gain(w, step, level.at(rate), gpus) for w in worlds[1:]])
    return Advice(
        level=level.name,
        rate=rate if found.low >= level.auto.least_gain and not (level is PROMPTS and _one_epoch(length)) else 0.0,
        gain=found,
        ceiling=_interval([level.ceiling(world.workload, step) for world in worlds]),
        why=_why(level, rate, found, best, level.auto.least_gain, length),
    )


def _one_epoch(length: Length) -> bool:
    return length.first_epoch >= length.steps


def _why(level: Level, rate: float, found: Interval, best: float, least: float, length: Length) -> str:
    """The advice in words."""
    if level is PROMPTS and _one_epoch(length):
        return "the run is over before prompts come back, and none has a history: nothing can be pruned"
    if best <= 1:
        return "at equal noise no rate gains anything: what is pruned costs more in noise than it saves in seconds"
    measured = f"a rate of {rate:g} gains {found.value:.2f}x to equal noise, at least {found.low:.2f}x"
    if found.low < least:
        return f"{measured}, and {least:g}x is the least worth having"
    return measured


def _interval(values: Sequence[float]) -> Interval:
    """The first value, and where 95% of the others lie, it included."""
    value, others = float(values[0]), values[1:]
    low, high = np.quantile(others, (TAIL, 1 - TAIL)).tolist() if len(others) else (value, value)
    return Interval(value=value, low=min(low, value), high=max(high, value))
