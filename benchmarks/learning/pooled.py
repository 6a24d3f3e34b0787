"""How much sooner a method is by the mean curve of all seeds, where a single seed's final accuracy is mostly noise.

An evaluation of 384 answers is off by 2.5 points, as much as a run gains in its last third: of a single seed it says
when the target was reached only within a factor, and means over seeds say it well.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.shared import Record
from dppo_lab.statistics import finite, seed_ends


def pooled(first: Sequence[Record], other: Sequence[Record], over: str) -> Record:
    """What the first spent to its final accuracy over what the other did, both by their mean curves over seeds.

    Args:
        first: the runs of the method that is compared with, one of each seed, with as many evaluations each.
        other: those of the other, in the same order of seeds.
        over: what is spent: ``step`` or ``seconds``.

    Returns:
        ``ratio``, the ends of its 95% interval (seeds resampled together) and ``seeds``; a ratio is 0 where the other
        never gets there, and the interval None for fewer than three seeds.
    """
    if [run["seed"] for run in first] != [run["seed"] for run in other]:
        raise ValueError("pooled: the methods' runs are of other seeds. Run both with the same --seeds.")
    curves = [np.array([[[p[over], p["accuracy"]] for p in run["curve"]] for run in runs]) for runs in (first, other)]

    def ratios(place_MS: np.ndarray) -> np.ndarray:
        return np.array([_ratio(*(curve_SI2[place_S].mean(0) for curve_SI2 in curves)) for place_S in place_MS])

    seeds = len(first)
    low, high = seed_ends(ratios, seeds)
    value = float(ratios(np.arange(seeds)[None])[0])
    return {"ratio": value, "low": finite(low), "high": finite(high), "seeds": seeds, "over": over}


def _ratio(first_I2: np.ndarray, other_I2: np.ndarray) -> float:
    target = first_I2[-1, 1]
    spent = [_spent(curve_I2, target) for curve_I2 in (first_I2, other_I2)]
    return spent[0] / spent[1] if 0 < spent[1] < np.inf else 0.0


def _spent(curve_I2: np.ndarray, target: float) -> float:
    """What was spent when a curve first reached a target, on straight lines; infinite if it never did."""
    amount_I, accuracy_I = curve_I2.T
    there = np.flatnonzero(accuracy_I >= target)
    if not len(there):
        return np.inf
    to = there[0]
    if not to:
        return 0.0
    part = (target - accuracy_I[to - 1]) / (accuracy_I[to] - accuracy_I[to - 1])
    return float(amount_I[to - 1] + part * (amount_I[to] - amount_I[to - 1]))
