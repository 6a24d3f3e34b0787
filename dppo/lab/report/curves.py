"""Means of a figure over seeds with an interval, and which seeds are in them."""

from collections.abc import Sequence

import numpy as np

from dppo.lab.report.sources import Contents, Group
from dppo.lab.runs.reader import RunRecord, Series
from dppo.lab.statistics import FEWEST, seed_interval

POINTS = 40
"""Places at most where a mean over seeds is drawn."""


def averaged(group: Group) -> tuple[RunRecord, ...]:
    """The runs a mean is taken over: those that ended well; where none has ended yet, those that are going."""
    ended = tuple(run for run in group.sound if run.status not in ("running", "stopped"))
    return ended or group.sound


def band(curves: Sequence[Series]) -> np.ndarray | None:
    """(4, I) places, means over seeds, and the ends of their 95% intervals, NaN with fewer than ``FEWEST`` seeds.

    Only on the stretch that all curves cover, None without one. Between points figures are interpolated linearly.
    """
    curves = [curve for curve in curves if len(curve.x_I)]
    start = max((curve.x_I[0] for curve in curves), default=np.inf)
    end = min((curve.x_I[-1] for curve in curves), default=-np.inf)
    if start > end:
        return None
    x_I = np.unique(np.concatenate([c.x_I[(c.x_I >= start) & (c.x_I <= end)] for c in curves]))
    if len(x_I) > POINTS:
        x_I = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(x_I, c.x_I, c.value_I) for c in curves])
    found = [seed_interval(dict(enumerate(seeds))) for seeds in values.T.tolist()]
    return np.array([x_I, *np.array([[one.centre, one.low, one.high] for one in found], dtype=float).T])


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
