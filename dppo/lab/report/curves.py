"""Means of a figure over seeds with an interval, and which seeds are in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dppo.lab.report.sources import Contents, Group
from dppo.lab.runs.folder import TOTALS
from dppo.lab.runs.reader import RunRecord, Series, number, phases_of
from dppo.lab.statistics import FEWEST, seed_interval

GOING = ("running", "stopped")
KNOWN = ("rollout", "reward", "prune", "log_probs", "forward_backward", "optimizer")
"""Phases of a step."""
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


def phase_seconds(run: RunRecord, group: Group) -> dict[str, float]:
    """Seconds of a run by phase: as its comparison read them, or from its logs.

    Seconds in no known phase are "other", if the total is known.
    """
    read = (one for one in group.compared.readout.get("runs", []) if one.get("seed") == run.seed and one.get("phases"))
    found = next(read, {"phases": phases_of(run.logs)})["phases"]
    seconds = {name: number(found.get(name)) for name in KNOWN}
    seconds = {name: value for name, value in seconds.items() if np.isfinite(value)}
    rest = last_of(run, TOTALS["seconds"], 0.0) - sum(seconds.values()) if seconds else 0.0
    return seconds | ({"other": rest} if rest > 0 else {})


def last_of(run: RunRecord, name: str, otherwise: float = np.nan) -> float:
    """The last value of a figure, or ``otherwise`` where it was not logged."""
    value_I = run.series(name).value_I
    return float(value_I[-1]) if len(value_I) else otherwise


def how_to_read(contents: Contents) -> str:
    """Meaning of lines and bands, and the seeds of each method in its mean."""
    used = {group.label: (averaged(group), len(group.runs) + len(group.awaited)) for group in contents.groups}
    seeds = "; ".join(f"{label} {len(runs)} of {total}" for label, (runs, total) in used.items())
    enough = any(len(runs) >= FEWEST for runs, _ in used.values())
    shown = f"mean over seeds, with its 95% bootstrap interval (none under {FEWEST} seeds)" if enough else "mean"
    return f"Bold: {shown}; thin: each seed. Seeds in the mean: {seeds}."
