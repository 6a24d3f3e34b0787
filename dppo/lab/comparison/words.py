"""``results.json`` in words and cells, for printed tables and for reports."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dppo.errors import duration as in_words
from dppo.lab.comparison.curves import AMOUNTS, READOUTS, TO_FINAL, TO_TARGET
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.reader import mapping, number, sequence

NOT_THERE = "—"


def amount(value: float, digits: int = 3) -> str:
    """A number with ``digits`` digits that count, thousands apart; a dash where it is not finite."""
    if not math.isfinite(value):
        return NOT_THERE
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{places}f}" if 0 <= places <= 6 else f"{value:,.0f}" if places < 0 else f"{value:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """Seconds >= 0 as hours, minutes and seconds, the two largest of them; a dash where not finite."""
    return in_words(seconds) if math.isfinite(seconds) else NOT_THERE


def counted(count: int, what: str) -> str:
    """``3 seeds``, ``1 seed``."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def percent(value: float) -> str:
    """A share in [0, 1] as percent with one decimal; a dash where it is NaN."""
    return f"{100 * value:.1f}%" if math.isfinite(value) else NOT_THERE


def points(value: float) -> str:
    """A difference of shares, in [-1, 1], as signed percentage points; a dash where it is NaN."""
    if not math.isfinite(value):
        return NOT_THERE
    rounded = round(100 * value, 1)
    return f"{rounded:+.1f} pp".replace("-", "−") if rounded else "0.0 pp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure, and its interval or what it lacks in small print."""

    text: str
    detail: str = ""


NO_CELL = Cell(text=NOT_THERE)
BASELINE_CELL = Cell(text=NOT_THERE, detail="the baseline")


def interval(read: Mapping[str, Any], words: Callable[[float], str], unit: str = "") -> Cell:
    """A figure of ``results.json`` and its interval, in words; ``unit`` follows the figure alone."""
    centre, low, high = number(read.get("mean", read.get("median"))), number(read.get("low")), number(read.get("high"))
    if not math.isfinite(centre):
        return NO_CELL
    detail = f"{words(low)} to {words(high)}"
    if math.isnan(low):
        detail = "too few seeds: no interval"
    elif math.isnan(high):
        detail = "no end: seeds that never got there"
    return Cell(text=words(centre) + unit, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One method in ``results.json``. Parts that are missing or damaged are empty."""

    name: str = ""
    baseline: str = ""
    """Name of the method that it is measured against."""
    readout: Mapping[str, Any] = field(default_factory=dict)
    speedup: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    """The target of the speedup, in words."""
    no_target: str = ""
    """Why there is no target, and so no speedup; empty if there is one."""
    baseline_seconds: float = math.nan
    """Training seconds of the baseline's runs, mean over those that finished."""

    @classmethod
    def of(cls, results: Mapping[str, Any], name: str) -> "Compared":
        """The method of that name."""
        methods, target = mapping(results.get("methods")), mapping(results.get("target"))
        speedup, baseline = mapping(mapping(results.get("speedup")).get(name)), str(results.get("baseline") or STOCK)
        return cls(
            name=name,
            baseline=baseline,
            readout=mapping(methods.get(name)),
            speedup=next((mapping(speedup[key]) for key in (TO_FINAL, TO_TARGET) if key in speedup), {}),
            target=str(target.get("what") or ""),
            no_target=str(target.get("missing") or ""),
            baseline_seconds=run_seconds(mapping(methods.get(baseline))),
        )

    @property
    def is_baseline(self) -> bool:
        """True if the others are measured against it."""
        return bool(self.name) and self.name == self.baseline

    def speedup_cell(self) -> Cell:
        """How many times faster than the baseline it reached the target."""
        if self.is_baseline:
            return Cell(text="1×", detail="the baseline")
        if self.no_target:
            return Cell(text=NOT_THERE, detail=self.no_target)
        median = number(self.speedup.get("median"))
        most = number(self.speedup.get("at_most", self.speedup.get("median")))
        if median > 0:
            found = interval(self.speedup, "{:.2f}".format, unit="×")
            # The baseline missed the target: the median is only a lower bound.
            return found if most <= median else replace(found, text=f"≥ {found.text}")
        if all(ends is None for ends in mapping(self.speedup.get("per_seed")).values()):
            return NO_CELL
        if most > 1:  # its runs had fewer seconds than the baseline needed: it may still be faster
            lengths = f"{duration(run_seconds(self.readout))} of {self.baseline}'s {duration(self.baseline_seconds)}"
            return Cell(text="too short to tell", detail=lengths)
        return Cell(text="not reached", detail=f"{self.speedup.get('reached', 'in most')} seeds")

    def difference_cells(self) -> tuple[Cell, ...]:
        """Accuracy minus the baseline's, in the order of ``READOUTS``."""
        if self.is_baseline:
            return (BASELINE_CELL,) * len(READOUTS)
        read = (mapping(self.readout.get(name)) for name in READOUTS)
        return tuple(interval(mapping(each.get("difference")), points) for each in read)

    def target_cells(self) -> tuple[Cell, ...]:
        """Amounts to the target, in the order of ``AMOUNTS``, and how many seeds reached it."""
        read = mapping(self.readout.get("to_target"))
        took = (
            interval(mapping(read.get(name)), duration if name == "seconds" else amount) for name in AMOUNTS if read
        )
        return (*took, Cell(text=str(read.get("reached") or NOT_THERE))) if read else ()


def run_seconds(readout: Mapping[str, Any]) -> float:
    """Training seconds of a method's finished runs, mean over them; NaN where there is none."""
    runs = [mapping(run) for run in sequence(readout.get("runs"))]
    curves = [sequence(run.get("curve")) for run in runs if run.get("status") == "finished"]
    ends = [number(mapping(curve[-1]).get("seconds")) for curve in curves if curve]
    return float(np.mean(ends)) if ends else math.nan
