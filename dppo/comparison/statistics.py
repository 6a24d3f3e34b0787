"""Intervals over a handful of seeds: the bootstrap, with tails moved out for what few seeds hide.

The plain percentile interval of a bootstrap over n seeds is too narrow: resamples spread by sqrt((n-1)/n) less than
the estimate does, and quantiles of the normal stand where those of Student's t belong. The expanded interval takes the
tails further out by both. It never leaves the range of the data, so few seeds cannot cover 95%: for a symmetric
quantity the range of n seeds misses the centre with chance ``2 ** (1 - n)``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from scipy import stats

from dppo.rng import Purpose, generator

FEWEST = 3
"""Seeds below which no interval is given."""
ENUMERATED = 6
"""Most seeds of which all resamples are gone through: 462 different ones of 6."""
RESAMPLES = 9999
"""Random resamples of more seeds than that."""

Statistic = Callable[[np.ndarray], np.ndarray]
"""Of the last axis: ``np.mean`` or ``np.median``, called with ``axis=-1``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure over seeds: its centre, the ends of its 95% interval, and the value of each seed."""

    centre: float | None
    """The statistic of the seeds that have a value; None where none has."""
    low: float | None
    high: float | None
    """None where fewer than ``FEWEST`` seeds have a value."""
    per_seed: Mapping[int, float | None]
    """None where a run did not finish."""

    def as_json(self, centre: str = "mean") -> dict[str, object]:
        """The record of ``results.json``; what is not finite (a target never reached) becomes null.

        Args:
            centre: what the centre is called.
        """
        ends = {centre: _finite(self.centre), "low": _finite(self.low), "high": _finite(self.high)}
        return {**ends, "per_seed": {str(seed): _finite(value) for seed, value in self.per_seed.items()}}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def interval(
    per_seed: Mapping[int, float | None], statistic: Callable[..., np.ndarray] = np.mean, *, level: float = 0.95
) -> Interval:
    """The statistic of the seeds' values with its expanded percentile interval.

    Args:
        per_seed: value of each seed; None for a seed without one. Infinite values are allowed with ``np.median``.
        statistic: ``np.mean`` or ``np.median``.
        level: of the interval, in (0, 1).
    """
    value_N = np.array([value for value in per_seed.values() if value is not None], dtype=float)
    centre = float(statistic(value_N)) if len(value_N) else None
    if len(value_N) < FEWEST:
        return Interval(centre=centre, low=None, high=None, per_seed=dict(per_seed))
    low, high = percentile_ends(value_N, statistic, expanded_tail(len(value_N), level))
    return Interval(centre=centre, low=low, high=high, per_seed=dict(per_seed))


def expanded_tail(seeds: int, level: float = 0.95) -> float:
    """Share of resamples to leave out at each end, in (0, 0.5), so that the interval covers about ``level``.

    Args:
        seeds: n, >= 2.
        level: in (0, 1).

    Source: Hesterberg (2015), What Teachers Should Know About the Bootstrap, The American Statistician 69(4),
    section 3.3: ``Phi(-sqrt(n / (n - 1)) * t)`` with ``t`` the upper quantile of Student's t with n - 1 degrees.
    """
    quantile = stats.t.ppf((1 + level) / 2, seeds - 1)
    return float(stats.norm.cdf(-math.sqrt(seeds / (seeds - 1)) * quantile))


def percentile_ends(value_N: np.ndarray, statistic: Callable[..., np.ndarray], tail: float) -> tuple[float, float]:
    """The quantiles of the resampled statistic at ``tail`` and ``1 - tail``; exact for few seeds.

    Args:
        value_N: (n,) values, n >= 2.
        statistic: called with ``axis=-1``.
        tail: share of resamples beyond each end, in (0, 0.5).
    """
    if len(value_N) > ENUMERATED:
        # Of values that are all equal scipy gives nan for the ends.
        if np.ptp(value_N) == 0:
            return float(value_N[0]), float(value_N[0])
        found = stats.bootstrap(
            (value_N,),
            statistic,
            n_resamples=RESAMPLES,
            confidence_level=1 - 2 * tail,
            method="percentile",
            rng=generator(0, Purpose.CHECK, len(value_N)),
        ).confidence_interval
        return float(found.low), float(found.high)
    index_RN, prob_R = all_resamples(len(value_N))
    made_R = statistic(value_N[index_RN], axis=-1)
    order_R = np.argsort(made_R, kind="stable")
    made_R, below_R = made_R[order_R], np.cumsum(prob_R[order_R])
    above_R = np.cumsum(prob_R[order_R][::-1])
    slack = 1e-12  # sums of probabilities carry rounding
    low = made_R[np.searchsorted(below_R, tail - slack)]
    high = made_R[::-1][np.searchsorted(above_R, tail - slack)]
    return float(low), float(high)


def all_resamples(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Every different resample of ``seeds`` values, (R, n) places, and its probability, (R,).

    Args:
        seeds: n, from 1 to ``ENUMERATED``.
    """
    index_RN = np.array(list(combinations_with_replacement(range(seeds), seeds)))
    counts_RN = (index_RN[:, :, None] == np.arange(seeds)).sum(1)
    ways_R = [math.factorial(seeds) / math.prod(map(math.factorial, counts)) for counts in counts_RN.tolist()]
    return index_RN, np.array(ways_R) / seeds**seeds


def paired(
    left: Mapping[int, float | None],
    right: Mapping[int, float | None],
    combine: Callable[[float, float], float] = lambda a, b: a - b,
) -> dict[int, float | None]:
    """``combine(left, right)`` seed by seed; None where either has no value.

    Args:
        left: value of each seed.
        right: of the baseline.
        combine: difference by default.
    """
    found: dict[int, float | None] = {}
    for seed, value in left.items():
        other = right.get(seed)
        found[seed] = None if value is None or other is None else combine(value, other)
    return found


def speedup(baseline_seconds: float, seconds: float) -> float:
    """How many times sooner, >= 0: 0 where the target was never reached, 1 where neither needed any time.

    Args:
        baseline_seconds: the baseline's time to the target, inf where it was not reached.
        seconds: the method's.
    """
    if math.isinf(seconds):
        return 0.0
    if seconds == 0:
        return 1.0 if baseline_seconds == 0 else math.inf
    return baseline_seconds / seconds


def counted(values: Sequence[float | None]) -> int:
    """How many seeds have a finite value."""
    return sum(value is not None and math.isfinite(value) for value in values)
