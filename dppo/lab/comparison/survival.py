"""Time to a target if some runs end before they reach it: medians, and ratios with bounds.

A run that ends without reaching the target is *censored*: it needed more than it had. It is neither left out nor
counted as if it had needed nothing, or exactly what it had.

The speedup of a method is the baseline's amount over the method's, seed by seed. If a run is censored, the ratio of its
seed is only known to lie between two ends: docs/compare.md. Its median is that of the lower ends: what was not observed
counts against the method.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
        different, place_M = np.unique(np.sort(places_MS, axis=1), axis=0, return_inverse=True)
        return np.array([median_amount([found[place] for place in row]) for row in different.tolist()])[place_M]

    low, high = seed_ends(medians, len(found))
    return SeedInterval(centre=median_amount(found) if found else None, low=low, high=high, per_seed=values)


def ratio(baseline: PerSeed, method: PerSeed) -> dict[str, Any]:
    """The baseline's amount to a target over a method's, paired by seed, as ``results.json`` has it.

    Seeds that the baseline does not have count as not finished. An infinite or missing figure is None.

    Returns:
        ``median`` of the lower ends of seeds, None if the method missed the target in half of them; ``low`` and
        ``high``, the 95% bootstrap interval: of the lower ends, and of the upper ends; ``at_most``, the median of the
        upper ends; ``reached``, the seeds in which the method reached the target; ``missed``, the seeds in which only
        the ``method``, only the ``baseline``, or ``both`` never reached it; ``per_seed``, the ends of each seed.
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
    low, high = (seed_ends(lambda places, e=each: np.median(e[places], axis=1), len(ends)) for each in (least, most))
    pairs = {seed: ends.get(seed) for seed in method}
    return {
        "median": float(np.median(least)) if 2 * np.sum(least > 0) > len(least) else None,
        "low": finite(low[0]),
        "high": finite(high[1]),
        "at_most": finite(float(np.median(most))) if ends else None,
        "reached": f"{len(ends) - missed['method'] - missed['both']} of {len(ends)}",
        "missed": {who: missed[who] for who in ("method", "baseline", "both")},
        "per_seed": {str(seed): each and [finite(end) for end in each] for seed, each in pairs.items()},
    }
