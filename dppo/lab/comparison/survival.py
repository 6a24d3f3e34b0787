"""Time to a target if some runs end before they reach it: medians, and ratios with bounds.

A run that ends without reaching the target is *censored*: it needed more than it had. It is neither left out nor
counted as if it had needed nothing, or exactly what it had.

The speedup of a method is the baseline's amount over the method's, seed by seed. If a run is censored, the ratio of its
seed is only known to lie between two ends: docs/compare.md. ``Ratio.median`` is the median over seeds of the lower
ends: what was not observed counts against the method.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dppo.lab.comparison.curves import Reach
from dppo.lab.statistics import SeedInterval, finite, seed_ends

PerSeed = Mapping[int, Reach | None]
"""One contestant's runs; None if a run did not finish, or its seed has no target."""
SLACK = 1e-9
"""Rounding of products of shares."""


def median_amount(found: Sequence[Reach]) -> float:
    """Amount by which half of the seeds have reached the target, by the Kaplan-Meier curve; infinite if half never did.

    If the share is one half over a stretch, it is the middle of the stretch, as in the median of an even number.
    """
    done, cut = ([run.amount for run in found if run.reached is reached] for reached in (True, False))
    if not cut:
        return float(np.median(done))
    curve = stats.ecdf(stats.CensoredData(uncensored=done, right=cut)).sf
    amount_I, share_I = np.append(curve.quantiles, math.inf), np.append(curve.probabilities, -1.0)
    return float(amount_I[(share_I <= 0.5 + SLACK).argmax()] + amount_I[(share_I < 0.5 - SLACK).argmax()]) / 2


def median_interval(per_seed: PerSeed) -> SeedInterval:
    """``median_amount`` over seeds with a bootstrap interval; ``per_seed`` of the result is None for censored runs."""
    found = [run for run in per_seed.values() if run is not None]
    values = {seed: run.amount if run and run.reached else None for seed, run in per_seed.items()}

    def medians(places_MS: np.ndarray) -> np.ndarray:
        if all(run.reached for run in found):
            return np.median(np.array([run.amount for run in found])[places_MS], axis=1)
        different, place_M = np.unique(np.sort(places_MS, axis=1), axis=0, return_inverse=True)
        return np.array([median_amount([found[place] for place in row]) for row in different.tolist()])[place_M]

    low, high = seed_ends(medians, len(found))
    return SeedInterval(centre=median_amount(found) if found else None, low=low, high=high, per_seed=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The baseline's amount to a target over a method's, over the seeds that have both runs."""

    median: float | None
    """Median of the lower ends; None if the method missed the target in half of the seeds."""
    low: float | None
    """Lower end of the 95% bootstrap interval over seeds of the lower ends; None under ``FEWEST`` seeds."""
    high: float | None
    """Upper end of that of the upper ends: may be infinite."""
    at_most: float | None
    """Median of the upper ends, may be infinite: ``median`` if no run near the middle is censored."""
    missed: Mapping[str, int]
    """Seeds in which only the ``method``, only the ``baseline``, or ``both`` never reached the target."""
    per_seed: Mapping[int, tuple[float, float] | None]
    """Ends of each seed's ratio; None if a run did not finish, or there is no target."""

    def as_json(self) -> dict[str, object]:
        """The record of ``results.json``; an infinite or missing figure is null."""
        pairs = sum(ends is not None for ends in self.per_seed.values())
        return {
            **{name: finite(getattr(self, name)) for name in ("median", "low", "high", "at_most")},
            "reached": f"{pairs - self.missed['method'] - self.missed['both']} of {pairs}",
            "missed": dict(self.missed),
            "per_seed": {str(seed): ends and [finite(end) for end in ends] for seed, ends in self.per_seed.items()},
        }


def ratio(baseline: PerSeed, method: PerSeed) -> Ratio:
    """Ratio of what two contestants needed, paired by seed; every run has more than nothing.

    Seeds that the baseline does not have count as not finished.
    """
    ends: dict[int, tuple[float, float]] = {}
    missed = Counter[str]()
    for seed, other in method.items():
        one = baseline.get(seed)
        if one is None or other is None:
            continue
        whole = one.amount / other.amount
        ends[seed] = (whole if other.reached else 0.0, whole if one.reached else math.inf)
        if not (one.reached and other.reached):
            missed["both" if one.reached == other.reached else "method" if one.reached else "baseline"] += 1
    least, most = np.array(list(ends.values())).reshape(-1, 2).T
    low, high = (
        seed_ends(lambda places, ends=ends: np.median(ends[places], axis=1), len(ends)) for ends in (least, most)
    )
    return Ratio(
        median=float(np.median(least)) if 2 * np.sum(least > 0) > len(least) else None,
        low=low[0],
        high=high[1],
        at_most=float(np.median(most)) if ends else None,
        missed={who: missed[who] for who in ("method", "baseline", "both")},
        per_seed={seed: ends.get(seed) for seed in method},
    )
