"""How much sooner a method is by the mean curve of all seeds, where a single seed's final accuracy is mostly noise.

An evaluation of 384 answers is off by 2.5 points, as much as a run gains in its last third: of a single seed it says
when the target was reached only within a factor, and means over seeds say it well.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from benchmarks.shared import Record
from dppo_lab.comparison.curves import Over, Point, reach
from dppo_lab.statistics import finite, seed_ends

PARTS = [field.name for field in fields(Point)]


def pooled(first: Sequence[Record], other: Sequence[Record], over: Over) -> Record:
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
    first_SIP, other_SIP = (
        np.array([[[each[part] for part in PARTS] for each in run["curve"]] for run in runs]) for runs in (first, other)
    )

    def ratios(place_MS: np.ndarray) -> np.ndarray:
        return np.array([_ratio(first_SIP[at_S].mean(0), other_SIP[at_S].mean(0), over) for at_S in place_MS])

    seeds = len(first)
    low, high = seed_ends(ratios, seeds)
    value = float(ratios(np.arange(seeds)[None])[0])
    return {"ratio": value, "low": finite(low), "high": finite(high), "seeds": seeds, "over": over}


def _ratio(first_IP: np.ndarray, other_IP: np.ndarray, over: Over) -> float:
    target = float(first_IP[-1, PARTS.index("accuracy")])
    spent, ours = (reach(_curve(mean_IP), target, over) for mean_IP in (first_IP, other_IP))
    return spent.amount / ours.amount if spent is not None and ours is not None and ours.reached else 0.0


def _curve(mean_IP: np.ndarray) -> list[Point]:
    return [Point(**dict(zip(PARTS, mean_P, strict=True))) for mean_P in mean_IP.tolist()]
