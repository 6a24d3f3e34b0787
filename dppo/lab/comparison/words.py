"""``results.json`` in words and cells, for printed tables and for reports."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dppo.errors import duration as in_words
from dppo.lab.comparison.curves import READOUTS
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.reader import mapping, number

NOT_THERE = "—"


def amount(value: float) -> str:
    """A number with three digits that count, thousands apart; a dash where it is not finite."""
    if not math.isfinite(value):
        return NOT_THERE
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 99.95 else f"{value:#.3g}"


def duration(seconds: float) -> str:
    """Seconds >= 0 as hours, minutes and seconds, the two largest of them; a dash where not finite."""
    return in_words(seconds) if math.isfinite(seconds) else NOT_THERE


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
        detail = "no interval"
    elif math.isnan(high):
        detail = "no upper end"
    return Cell(text=words(centre) + unit, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One method in ``results.json``. Parts that are missing or damaged are empty."""

    is_baseline: bool = False
    """True if the others are measured against it."""
    readout: Mapping[str, Any] = field(default_factory=dict)
    speedup: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    """The target of the speedup, in words."""
    no_target: str = ""
    """Why there is no target, and so no speedup; empty if there is one."""

    @classmethod
    def of(cls, results: Mapping[str, Any], name: str) -> "Compared":
        """The method of that name."""
        target, speedup = mapping(results.get("target")), mapping(mapping(results.get("speedup")).get(name))
        return cls(
            is_baseline=name == str(results.get("baseline") or STOCK),
            readout=mapping(mapping(results.get("methods")).get(name)),
            speedup=next((mapping(found) for found in speedup.values()), {}),  # to the one target
            target=str(target.get("what") or ""),
            no_target=str(target.get("missing") or ""),
        )

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
        # Its runs may have been shorter than the baseline needed: it may still be faster.
        text = f"≤ {most:.2f}×" if most > 1 else "not reached"
        return Cell(text=text, detail=f"{self.speedup.get('reached', 'in most')} seeds")

    def difference_cells(self) -> tuple[Cell, ...]:
        """Accuracy minus the baseline's, in the order of ``READOUTS``."""
        if self.is_baseline:
            return (BASELINE_CELL,) * len(READOUTS)
        read = (mapping(self.readout.get(name)) for name in READOUTS)
        return tuple(interval(mapping(each.get("difference")), points) for each in read)
