"""Accuracy of runs as curves over seconds, rollouts or updates, and their mean over seeds with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dppo.report.records import Group
from dppo.runs.folder import ACCURACY
from dppo.runs.reader import RunRecord, number
from dppo.statistics import FEWEST, seed_interval

GOING = ("running", "stopped")
POINTS = 40
"""Places at most where a mean over seeds is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run's accuracy."""

    x_K: np.ndarray
    """(K,) ascending; seconds, completions or updates."""
    y_K: np.ndarray
    """(K,) accuracy, share of problems in [0, 1]."""
    left_out: int
    """Evaluations without a finite accuracy or place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The mean of several curves where all of them are."""

    x_K: np.ndarray
    mean_K: np.ndarray
    low_K: np.ndarray | None
    """Bounds of the 95% interval over seeds; None with fewer than ``FEWEST``."""
    high_K: np.ndarray | None


def accuracy(run: RunRecord, over: str) -> Curve:
    """A run's accuracy over "step" or a total, as in ``metrics.jsonl``; evaluations of one update count once."""
    found = {log["step"]: (number(log.get(over)), number(log[ACCURACY])) for log in run.logs if ACCURACY in log}
    points = np.array(sorted(found.values()), dtype=np.float64).reshape(-1, 2)
    whole = np.isfinite(points).all(1)
    return Curve(x_K=points[whole, 0], y_K=points[whole, 1], left_out=int((~whole).sum()))


def averaged(group: Group) -> tuple[RunRecord, ...]:
    """The runs a mean is taken over: those that ended well; where none has ended yet, those that are going."""
    ended = tuple(run for run in group.sound if run.status not in GOING)
    return ended or group.sound


def band(curves: Sequence[Curve]) -> Band | None:
    """Mean and interval over seeds, on the stretch that all curves cover; None where they have none in common.

    Between evaluations accuracy is interpolated linearly.
    """
    curves = [curve for curve in curves if len(curve.x_K)]
    if not curves:
        return None
    start, end = max(c.x_K[0] for c in curves), min(c.x_K[-1] for c in curves)
    if start > end:
        return None
    x_K = np.unique(np.concatenate([c.x_K[(c.x_K >= start) & (c.x_K <= end)] for c in curves]))
    if len(x_K) > POINTS:
        x_K = np.linspace(start, end, POINTS)
    y_SK = np.stack([np.interp(x_K, c.x_K, c.y_K) for c in curves])
    low_K, high_K = ends(y_SK)
    return Band(x_K=x_K, mean_K=y_SK.mean(0), low_K=low_K, high_K=high_K)


def ends(value_SK: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Ends of the 95% interval of the mean over seeds, (K,) each, of (S, K) values; None with too few seeds."""
    if len(value_SK) < FEWEST:
        return None, None
    found = [seed_interval(dict(enumerate(value_S.tolist()))) for value_S in value_SK.T]
    return np.array([one.low for one in found], dtype=float), np.array([one.high for one in found], dtype=float)


def mean_over_seeds(group: Group, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(K,) updates that every seed logged a figure at, and (K,) its means there; empty where no run has it."""
    found = [series for run in averaged(group) if len((series := run.series(name)).step_K)]
    if not found:
        return np.array([], dtype=np.int64), np.array([])
    shared_K = reduce(np.intersect1d, [series.step_K for series in found])
    values = [series.value_K[np.isin(series.step_K, shared_K)] for series in found]
    return shared_K, np.mean(values, axis=0) if len(shared_K) else np.array([])


def seeds_in_words(group: Group) -> str:
    """How many seeds a mean is over, and what became of the others."""
    used = averaged(group)
    total = len(group.runs) + len(group.awaited)
    going = " not at the end yet" if used and all(run.status in GOING for run in used) else ""
    reasons = [f"{_seeds(runs)} {why}" for why, runs in _left_out(group) if runs]
    if group.awaited:
        reasons.append(f"seed {', '.join(map(str, group.awaited))} not started")
    few = ", too few for an interval" if len(used) < FEWEST else ""
    without = f" ({'; '.join(reasons)})" if reasons else ""
    return f"{group.label} {len(used)} of {total}{going}{few}{without}"


def _left_out(group: Group) -> list[tuple[str, list[RunRecord]]]:
    used = averaged(group)
    rest = [run for run in group.runs if run not in used]
    return [
        ("failed", [run for run in rest if run.status == "failed"]),
        ("not at the end yet", [run for run in rest if run.status in GOING and run.logs]),
        ("without logs", [run for run in rest if run.status != "failed" and not run.logs]),
    ]


def _seeds(runs: Sequence[RunRecord]) -> str:
    return "seed " + ", ".join("unknown" if run.seed is None else str(run.seed) for run in runs)
