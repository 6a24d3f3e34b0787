"""A plan: what a run costs under each option, with intervals, and what is worth pruning. Records in, records out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dppo.pruning.ceiling import COMPLETION_AUTO, rates_to
from dppo_lab.planning.advice import Advice, Rates, advices
from dppo_lab.planning.figures import Figures, interval, seconds_of
from dppo_lab.planning.records import EVERYTHING, Kept, Length, Option, Prices, Seconds, Step, Work
from dppo_lab.planning.tokens import TokenSample
from dppo_lab.statistics import Estimate

SMALL_GROUP = 2
"""Completions of a prompt where its history is the baseline."""
RATES = (0.5, 0.3, 0.5, 0.85)
"""Share of each level to prune where a configuration gives no rates."""
EXACT = 2
"""Place of the option that prunes nothing and skips what has no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a plan is made from."""

    name: str
    """Where the figures are from."""
    figures: Figures
    samples: Sequence[Figures] = ()
    """The figures in resamples of what was measured; none where nothing was."""
    length: Length
    processes: int = 1
    """That the figures are of."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One option of a plan. The ends of an interval equal its value where nothing was sampled."""

    option: Option
    kept: tuple[tuple[float, Kept], ...]
    """By rate of completions, what is kept where that goes by tokens; empty where it goes by lengths alone."""
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
class Plan:
    """What a run costs under each option, and what is worth pruning."""

    title: str
    source: str
    """Where the figures are from."""
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
    """Of prompts, then of completions; where tokens are known then of these and of the head."""
    method: Mapping[str, Any]
    """Fields to write with the advised rates: a method that prunes, where the configuration's own does not."""
    notes: tuple[str, ...]


def options(
    completion_rate: float, prompt_rate: float, tokens: tuple[float, float] | None = None
) -> tuple[Option, ...]:
    """The options of a plan, TRL's own trainer first; ``tokens`` are rates of cuts and of the head, None without."""
    both = Option(
        name=f"both {prompt_rate:g}, {completion_rate:g}", completion_rate=completion_rate, prompt_rate=prompt_rate
    )
    found = (
        Option(name="TRL", layout="padded", forwarded="all"),
        Option(name="dense rows", forwarded="all"),
        Option(name="without zero advantages"),
        Option(name=f"completions {completion_rate:g}", completion_rate=completion_rate),
        Option(name=f"prompts {prompt_rate:g}", prompt_rate=prompt_rate),
        both,
        Option(name=f"history, groups of {SMALL_GROUP}", baseline="history", group=SMALL_GROUP),
        replace(both, name="all together", baseline="history", group=SMALL_GROUP),
    )
    if tokens is None:
        return found
    cuts = Option(name=f"cuts {tokens[0]:g}", token_rate=tokens[0])
    return (*found, cuts, replace(cuts, name=f"cuts {tokens[0]:g}, head {tokens[1]:g}", head_rate=tokens[1]))


def make_plan(
    found: Source,
    step: Step,
    prices: Prices,
    rates: Rates,
    *,
    title: str,
    method: Mapping[str, Any] = MappingProxyType({}),
) -> Plan:
    """The plan of a run, with intervals from the samples of its source.

    ``rates`` are those of the configuration, ``RATES`` where it has none; ``method`` has the fields of one that prunes,
    where the configuration's own does not.
    """
    completion_rate, prompt_rate, *token_rates = (own or other for own, other in zip(rates, RATES, strict=True))
    by_token = found.figures.tokens is not None and found.figures.tokens.fits(step, Option(name="own groups"))
    chosen = options(completion_rate, prompt_rate, (token_rates[0], token_rates[1]) if by_token else None)
    worlds = [found.figures, *found.samples]
    first = [seconds_of(world, step, chosen[0], prices.gpus).total for world in worlds]
    exact = [seconds_of(world, step, chosen[EXACT], prices.gpus) for world in worlds]
    return Plan(
        title=title,
        source=found.name,
        step=step,
        length=found.length,
        prices=prices,
        figures=found.figures,
        rows=tuple(_row(worlds, first, step, option, found.length, prices) for option in chosen),
        update_free=interval([_without(each.total, each.update) for each in exact]),
        rollout_free=interval([_without(each.total, each.rollout) for each in exact]),
        advice=advices(worlds, step, prices.gpus, found.length, rates, by_token=by_token),
        method=dict(method),
        notes=found.notes,
    )


def _without(total: float, part: float) -> float:
    """How many times as fast a step is without a part of it; infinity where it has no other, as figures by hand may."""
    return total / (total - part) if total > part else math.inf


def _row(
    worlds: Sequence[Figures], first: Sequence[float], step: Step, option: Option, length: Length, prices: Prices
) -> PlanLine:
    def of_steps(option: Option) -> tuple[list[Work], list[Seconds]]:
        works = [world.work(step, option) for world in worlds]
        return works, [each.costs.seconds(work, option, prices.gpus) for each, work in zip(worlds, works, strict=True)]

    works, seconds = of_steps(option)
    # In the first epoch no prompt has a history, and none is pruned.
    phases = [(length.first_epoch, *of_steps(replace(option, prompt_rate=0.0)))] if option.prompt_rate else []
    phases.append((length.steps - sum(steps for steps, *_ in phases), works, seconds))
    each_world = range(len(worlds))
    hours = [sum(steps * spent[w].total for steps, _, spent in phases) / 3600 for w in each_world]
    equal = [sum(n * work[w].noise * spent[w].total for n, work, spent in phases) / 3600 for w in each_world]
    to_equal = [(steps * work[0].noise, work[0]) for steps, work, _ in phases]
    return PlanLine(
        option=option,
        kept=_kept_by_rate(worlds[0].tokens, step, option),
        work=works[0],
        seconds=seconds[0],
        per_step=interval([each.total for each in seconds]),
        speedup=interval([whole / each.total for whole, each in zip(first, seconds, strict=True)]),
        noise=interval([work.noise for work in works]),
        hours=interval(hours),
        equal_hours=interval(equal),
        completions=sum(steps * work.completions for steps, work in to_equal),
        tokens=sum(steps * (work.generated + work.forwarded) for steps, work in to_equal),
        price=None if prices.gpu_hour is None else hours[0] * prices.gpus * prices.gpu_hour,
        kilowatt_hours=None if prices.watts is None else hours[0] * prices.gpus * prices.watts / 1000,
    )


def _kept_by_rate(tokens: TokenSample | None, step: Step, option: Option) -> tuple[tuple[float, Kept], ...]:
    """``PlanLine.kept``: at the option's own rate and, for whoever changes it, on a grid."""
    if tokens is None or not tokens.fits(step, option):
        return ()
    if not option.completion_rate:
        return ((0.0, tokens.kept(option, step)),)
    if not tokens.scored:
        return ()
    rates = sorted({option.completion_rate, *rates_to(COMPLETION_AUTO.largest)})
    return ((0.0, EVERYTHING), *((rate, tokens.kept(replace(option, completion_rate=rate), step)) for rate in rates))
