"""Intervals over the seeds of an experiment, which cover about 95%: the bootstrap with expanded tails.

Over few seeds the plain percentile interval is too narrow: resamples spread by sqrt((n-1)/n) less than the estimate
does, and it uses quantiles of the normal in place of those of Student's t. The expanded interval corrects its tails for
both. It never leaves the range of the data, so with few seeds it cannot cover 95%: for a symmetric quantity the range
of n seeds misses the centre with probability ``2 ** (1 - n)``. It allows infinite figures (a target never reached).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from dppo.rng import Purpose, generator

LEVEL = 0.95
FEWEST = 3
"""Seeds below which no interval is given."""
SEED_RESAMPLES = 9999


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedInterval:
    """A figure over seeds: its centre, the ends of its 95% interval, and the value of each seed."""

    centre: float | None
    """The statistic of the seeds that have a value; None where none has."""
    low: float | None
    high: float | None
    """None where fewer than ``FEWEST`` seeds have a value."""
    per_seed: Mapping[int, float | None]
    """None where a run did not finish."""

    def as_json(self, centre: str = "mean") -> dict[str, object]:
        """The record of ``results.json``, its centre under that name; infinity, a target never reached, is null."""
        ends = {centre: finite(self.centre), "low": finite(self.low), "high": finite(self.high)}
        return {**ends, "per_seed": {str(seed): finite(value) for seed, value in self.per_seed.items()}}


def finite(value: float | None) -> float | None:
    """The value, None where it is infinite, nan or missing: JSON has no word for those."""
    return value if value is not None and math.isfinite(value) else None


def seed_interval(per_seed: Mapping[int, float | None], statistic: Callable[..., np.ndarray] = np.mean) -> SeedInterval:
    """The ``statistic`` (``np.mean`` or ``np.median``) of the seeds' values with its expanded percentile interval.

    A seed without a value has None. Infinite values are allowed with ``np.median``.
    """
    values = np.array([value for value in per_seed.values() if value is not None], dtype=float)
    centre = float(statistic(values)) if len(values) else None
    low, high = seed_ends(lambda places: statistic(values[places], axis=-1), len(values))
    return SeedInterval(centre=centre, low=low, high=high, per_seed=dict(per_seed))


def seed_ends(statistic: Callable[[np.ndarray], np.ndarray], seeds: int) -> tuple[float | None, float | None]:
    """The ends of ``resampled_ends`` at the expanded tail; None for fewer than ``FEWEST`` seeds."""
    return (None, None) if seeds < FEWEST else resampled_ends(statistic, seeds, expanded_tail(seeds))


def expanded_tail(seeds: int) -> float:
    """Share of resamples to leave out at each end, in (0, 0.5), so that the interval of n >= 2 seeds covers about 95%.

    Source: Hesterberg (2015), What Teachers Should Know About the Bootstrap, The American Statistician 69(4),
    section 3.3: ``Phi(-sqrt(n / (n - 1)) * t)`` with ``t`` the upper quantile of Student's t with n - 1 degrees.
    """
    quantile = stats.t.ppf((1 + LEVEL) / 2, seeds - 1)
    return float(stats.norm.cdf(-math.sqrt(seeds / (seeds - 1)) * quantile))


def resampled_ends(statistic: Callable[[np.ndarray], np.ndarray], seeds: int, tail: float) -> tuple[float, float]:
    """The quantiles at ``tail`` and ``1 - tail`` of a statistic that needs to know which seeds a resample holds.

    Figures looked up by the same place stay paired. A quantile is the figure of one resample, never between two, so
    infinite figures are allowed.

    Args:
        statistic: of (M, seeds) places from 0 to seeds - 1, a resample per line; gives (M,) figures, none of them nan.
        seeds: how many there are, >= 1.
        tail: share of resamples beyond each end, in (0, 0.5).
    """
    rng = generator(0, Purpose.CHECK, seeds)
    made_M = np.sort(statistic(rng.integers(seeds, size=(SEED_RESAMPLES, seeds))))
    place = max(math.ceil(tail * SEED_RESAMPLES) - 1, 0)
    return float(made_M[place]), float(made_M[-1 - place])
