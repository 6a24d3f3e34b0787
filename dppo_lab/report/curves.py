"""Means of a figure over seeds with an interval, and which seeds are in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dppo_lab.report.sources import Group
from dppo_lab.runs.reader import RunRecord, Series
from dppo_lab.statistics import FEWEST, seed_interval

GOING = ("running", "stopped")
POINTS = 40
"""Places at most where a mean over seeds is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The mean of several curves where all of them are."""

    x_I: np.ndarray
    mean_I: np.ndarray
    low_I: np.ndarray | None
    """Bounds of the 95% interval over seeds; None with fewer than ``FEWEST``."""
    high_I: np.ndarray | None


def averaged(group: Group) -> tuple[RunRecord, ...]:
    """The runs a mean is taken over: those that ended well; where none has ended yet, those that are going."""
    ended = tuple(run for run in group.sound if run.status not in GOING)
    return ended or group.sound


def band(curves: Sequence[Series]) -> Band | None:
    """Mean and interval over seeds, on the stretch that all curves cover; None where they have none in common.

    Between the points of a curve its figure is interpolated linearly.
    """
    curves = [curve for curve in curves if len(curve.x_I)]
    if not curves:
        return None
    start, end = max(c.x_I[0] for c in curves), min(c.x_I[-1] for c in curves)
    if start > end:
        return None
    x_I = np.unique(np.concatenate([c.x_I[(c.x_I >= start) & (c.x_I <= end)] for c in curves]))
    if len(x_I) > POINTS:
        x_I = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(x_I, c.x_I, c.value_I) for c in curves])
    low_I = high_I = None
    if len(curves) >= FEWEST:
        found = [seed_interval(dict(enumerate(seeds))) for seeds in values.T.tolist()]
        low_I, high_I = np.array([[one.low, one.high] for one in found], dtype=float).T
    return Band(x_I=x_I, mean_I=values.mean(0), low_I=low_I, high_I=high_I)


def common_steps(found: Sequence[Series]) -> tuple[np.ndarray, list[np.ndarray]]:
    """(I,) places that every curve has, and the (I,) values of each curve there."""
    shared_I = reduce(np.intersect1d, [series.x_I for series in found])
    return shared_I, [series.value_I[np.isin(series.x_I, shared_I)] for series in found]


def mean_over_seeds(group: Group, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(I,) updates that every seed logged a figure at, and (I,) its means there; empty where no run has it."""
    found = [series for run in averaged(group) if len((series := run.series(name)).x_I)]
    if not found:
        return np.array([]), np.array([])
    shared_I, values = common_steps(found)
    return shared_I, np.mean(values, axis=0) if len(shared_I) else np.array([])


def last_of(run: RunRecord, name: str, otherwise: float = np.nan) -> float:
    """The last value of a figure, or ``otherwise`` where it was not logged."""
    value_I = run.series(name).value_I
    return float(value_I[-1]) if len(value_I) else otherwise


def seeds_in_words(group: Group) -> str:
    """How many seeds a mean is over, and what became of the others."""
    used = averaged(group)
    rest = [run for run in group.runs if run not in used]
    left_out = {
        "failed": [run for run in rest if run.status == "failed"],
        "not at the end yet": [run for run in rest if run.status in GOING and run.logs],
        "without logs": [run for run in rest if run.status != "failed" and not run.logs],
    }
    reasons = [f"{_seeds(runs)} {why}" for why, runs in left_out.items() if runs]
    if group.awaited:
        reasons.append(f"seed {', '.join(map(str, group.awaited))} not started")
    total = len(group.runs) + len(group.awaited)
    going = " not at the end yet" if used and all(run.status in GOING for run in used) else ""
    few = ", too few for an interval" if len(used) < FEWEST else ""
    without = f" ({'; '.join(reasons)})" if reasons else ""
    return f"{group.label} {len(used)} of {total}{going}{few}{without}"


def _seeds(runs: Sequence[RunRecord]) -> str:
    return "seed " + ", ".join("unknown" if run.seed is None else str(run.seed) for run in runs)
