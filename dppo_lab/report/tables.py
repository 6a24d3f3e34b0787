"""The tables of a report: methods side by side, what it took to reach the target, and every run."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dppo.verification.findings import CeilingRow
from dppo_lab.comparison.curves import AMOUNTS, READOUTS
from dppo_lab.report.curves import averaged
from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.text import NOT_THERE, amount, counted, duration
from dppo_lab.runs.ceilings import run_ceilings
from dppo_lab.runs.folder import ACCURACY, TOTALS
from dppo_lab.runs.reader import RunRecord, mapping, number
from dppo_lab.statistics import FEWEST

EQUAL = {name: name.replace("_", " ") for name in READOUTS}
TO_TARGET = {over: duration if over == "seconds" else amount for over in AMOUNTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure, and its interval or what it lacks in small print."""

    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """One method, in the columns of the paper's table and ours."""

    label: str
    settings: str
    speedup: Cell
    differences: tuple[Cell, ...]
    """Accuracy minus the baseline's, in the order of ``EQUAL``."""
    rates: Cell
    """Shares that are pruned: of completions with a gradient, of prompts with a history."""
    biased: Cell
    accuracy: Cell
    seeds: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run."""

    label: str
    run: RunRecord
    updates: str
    seconds: str
    rollouts: str
    accuracy: str


def target_lines(contents: Contents) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """Label and cells per method: what it took to reach the target, and how many seeds did; none without a target."""
    lines = []
    for group in contents.groups:
        read = mapping(group.readout.get("to_target"))
        if read:
            cells = [_interval(mapping(read.get(name)), words) for name, words in TO_TARGET.items()]
            lines.append((group.label, (*cells, Cell(text=str(read.get("reached") or NOT_THERE)))))
    return tuple(lines)


def ceiling_lines(contents: Contents) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """Label and cells per method: what pruning could have saved at most, of prompts and of completions, and the share
    without a gradient, which is free. Methods whose runs do not say are left out."""
    lines = []
    for group in contents.groups:
        found = {row.level: row for row in run_ceilings(group.sound)}
        cells = [_ceiling(found.get(level)) for level in ("prompts", "completions")]
        free = found["completions"].free if "completions" in found else None
        if found:
            lines.append((group.label, (*cells, Cell(text=NOT_THERE if free is None else percent(free)))))
    return tuple(lines)


def _ceiling(row: CeilingRow | None) -> Cell:
    if row is None:
        return Cell(text=NOT_THERE)
    return Cell(text=f"{amount(row.value)}×", detail=f"{amount(row.low)} to {amount(row.high)}")


def run_lines(contents: Contents) -> tuple[RunLine, ...]:
    """Every run, with what became of it."""
    return tuple(
        RunLine(
            label=group.label,
            run=run,
            updates=amount(run.done) + (f" of {amount(run.updates)}" if run.updates else ""),
            seconds=duration(_last(run, TOTALS["seconds"]) if math.isnan(run.seconds) else run.seconds),
            rollouts=amount(_last(run, TOTALS["rollouts"])),
            accuracy=percent(_last(run, ACCURACY)),
        )
        for group in contents.groups
        for run in group.runs
    )


def findings(contents: Contents) -> tuple[str, ...]:
    """Why there is no target, or what the speedups say, one sentence per method; empty where there are none."""
    none = dict.fromkeys(f"No speedup: {group.no_target}." for group in contents.groups if group.no_target)
    found = [
        (number(group.speedup.get("median")), _finding(group))
        for group in contents.groups
        if group.name != group.baseline and not group.no_target and _has_speedup(group)
    ]
    best_first = sorted(found, key=lambda pair: math.inf if math.isnan(pair[0]) else -pair[0])
    return (*none, *(sentence for _, sentence in best_first))


def _has_speedup(group: Group) -> bool:
    """Whether there are pairs of runs, even if they never reached the target."""
    seeds = mapping(group.speedup.get("per_seed")).values()
    return number(group.speedup.get("median")) > 0 or any(ends is not None for ends in seeds)


def _finding(group: Group) -> str:
    target = group.target.removesuffix(", same seed") or f"final accuracy of {group.baseline}"
    median, low, high = (number(group.speedup.get(name)) for name in ("median", "low", "high"))
    name = f"{group.label} (biased)" if group.biased else group.label
    if not median > 0:
        reached = group.speedup.get("reached")
        return f"{name} did not reach the {target} in most seeds{f' ({reached} did)' if reached else ''}."
    part = f"{name} reached the {target} in {1 / median:.0%} of the time of {group.baseline}"
    says = f"{part} or less: at least {median:.2f}×" if _or_more(group) else f"{part}: {median:.2f}×"
    if math.isnan(low):
        return f"{says}. There are too few seeds for an interval."
    if math.isnan(high):
        return f"{says} (95% interval from {low:.2f}, without an end: {group.baseline} missed the target)."
    if low <= 1 <= high:
        return f"{says}, but the 95% interval, {low:.2f} to {high:.2f}, includes no gain at all."
    return f"{says} (95% interval {low:.2f} to {high:.2f})."


def _or_more(group: Group) -> bool:
    """Whether the median is only a lower bound, since the baseline missed the target."""
    most = number(group.speedup.get("at_most", group.speedup.get("median")))
    return not most <= number(group.speedup.get("median"))


def percent(value: float) -> str:
    """A share in [0, 1] as percent with one decimal; a dash where it is NaN."""
    return f"{100 * value:.1f}%" if math.isfinite(value) else NOT_THERE


def points(value: float) -> str:
    """A difference of shares, in [-1, 1], as signed percentage points; a dash where it is NaN."""
    if not math.isfinite(value):
        return NOT_THERE
    rounded = round(100 * value, 1)
    return f"{rounded:+.1f} pp".replace("-", "−") if rounded else "0.0 pp"


def method_line(group: Group) -> MethodLine:
    """What the table says of one method."""
    states = Counter(run.status for run in group.runs)
    detail = [f"{states[state]} {state}" for state in ("failed", "stopped", "running", "unknown") if states[state]]
    detail += [f"{len(group.awaited)} not started"] if group.awaited else []
    known = group.biased or any(run.describe or run.paper for run in group.runs) or "biased" in group.readout
    biased = ("yes" if group.biased else "no") if known else "not recorded"
    settings = ", ".join(f"{key}: {value}" for key, value in group.overrides.items()) or "as configured"
    if group.is_baseline:
        speedup = Cell(text="1×", detail="the baseline")
        differences = (Cell(text=NOT_THERE, detail="the baseline"),) * len(EQUAL)
    else:
        speedup = _speedup(group)
        found = [mapping(mapping(group.readout.get(name)).get("difference")) for name in EQUAL]
        differences = tuple(_interval(read, points) for read in found)
    return MethodLine(
        label=group.label,
        settings=settings if group.source else next((run.describe for run in group.runs), ""),
        speedup=speedup,
        differences=differences,
        rates=_rates(group),
        biased=Cell(text=biased, detail="; ".join(group.biased)),
        accuracy=_accuracy(group),
        seeds=Cell(text=f"{states['finished']} of {states.total() + len(group.awaited)}", detail=", ".join(detail)),
    )


def _rates(group: Group) -> Cell:
    """The rates of the first run that has settings, or what the comparison set; a dash for TRL's own trainer."""
    config = next((run.config for run in group.runs if run.config), group.overrides)
    rates = [config.get(f"{level}_prune_rate") for level in ("completion", "prompt")]
    if rates == [None, None]:
        return Cell(text=NOT_THERE)
    shown = [rate if isinstance(rate, str) else f"{number(rate or 0.0):.0%}" for rate in rates]
    return Cell(text=", ".join(shown))


def _accuracy(group: Group) -> Cell:
    read = mapping(group.readout.get("final"))
    if read:
        return _interval(read, percent)
    finals = [value for run in averaged(group) if math.isfinite(value := _last(run, ACCURACY))]
    if not finals:
        return Cell(text=NOT_THERE)
    return Cell(text=percent(sum(finals) / len(finals)), detail=f"last, mean of {counted(len(finals), 'seed')}")


def _speedup(group: Group) -> Cell:
    if group.no_target:
        return Cell(text=NOT_THERE, detail=group.no_target)
    if not _has_speedup(group):
        return Cell(text=NOT_THERE)
    if not number(group.speedup.get("median")) > 0:
        return Cell(text="not reached", detail=f"{group.speedup.get('reached', 'in most')} seeds")
    found = _interval(group.speedup, "{:.2f}".format, unit="×")
    return replace(found, text=f"≥ {found.text}") if _or_more(group) else found


def _interval(read: Mapping[str, Any], words: Callable[[float], str], unit: str = "") -> Cell:
    """A figure of ``results.json`` and its interval, in words; ``unit`` follows the figure alone."""
    centre, low, high = number(read.get("mean", read.get("median"))), number(read.get("low")), number(read.get("high"))
    if not math.isfinite(centre):
        return Cell(text=NOT_THERE)
    detail = f"{words(low)} to {words(high)}"
    if math.isnan(low) or math.isnan(high):
        seeds = len(mapping(read.get("per_seed")))
        detail = f"{counted(seeds, 'seed')}: no interval" if seeds < FEWEST else "no end: seeds that never got there"
    return Cell(text=words(centre) + unit, detail=detail)


def _last(run: RunRecord, name: str) -> float:
    value_I = run.series(name).value_I
    return float(value_I[-1]) if len(value_I) else math.nan
