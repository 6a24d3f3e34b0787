"""Intervals, each for what it is over; all cover about 95%.

| interval | over what, of what, how |
|---|---|
| ``seed_interval`` | over a handful of seeds, of a mean or a median: the bootstrap with its tails moved out |
| ``problem_interval`` | over the problems of a benchmark, of a mean: the percentile bootstrap |
| ``benchmark_interval`` | the same for the unweighted mean of several benchmarks |
| ``normal_interval`` | over many problems, of a mean: normal, without draws, for curves that ask at every point |
| ``student_interval`` | over a handful of seeds, of a mean of nearly normal figures: Student's t |

They do not stand in for each other. Over seeds the plain percentile interval is too narrow: resamples spread by
sqrt((n-1)/n) less than the estimate does, and quantiles of the normal stand where those of Student's t belong; the
expanded interval takes the tails further out by both. It never leaves the range of the data, so few seeds cannot cover
95%: for a symmetric quantity the range of n seeds misses the centre with chance ``2 ** (1 - n)``. It takes figures that
are infinite (a target never reached), which Student's t cannot. Over hundreds of problems none of this matters, but all
problems of a set may be right or all wrong, and then resamples do not differ at all.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from scipy import stats

from dppo.errors import ConfigError
from dppo.rng import Purpose, generator

LEVEL = 0.95
SHARES = (0.0, 1.0)
"""The span of a share; of a difference of shares it is (-1, 1)."""
FEWEST = 3
"""Seeds below which no interval is given."""
ENUMERATED = 6
"""Most seeds of which all resamples are gone through: 462 different ones of 6."""
SEED_RESAMPLES = 9999
"""Random resamples of more seeds than that."""
RESAMPLES = 10_000
"""Random resamples of problems."""
_CELLS = 2_000_000
"""Counts drawn at once: 16 megabytes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


# -- over seeds ---------------------------------------------------------------------------------------------------


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
    if len(values) < FEWEST:
        return SeedInterval(centre=centre, low=None, high=None, per_seed=dict(per_seed))
    low, high = percentile_ends(values, statistic, expanded_tail(len(values)))
    return SeedInterval(centre=centre, low=low, high=high, per_seed=dict(per_seed))


def expanded_tail(seeds: int) -> float:
    """Share of resamples to leave out at each end, in (0, 0.5), so that the interval of n >= 2 seeds covers about 95%.

    Source: Hesterberg (2015), What Teachers Should Know About the Bootstrap, The American Statistician 69(4),
    section 3.3: ``Phi(-sqrt(n / (n - 1)) * t)`` with ``t`` the upper quantile of Student's t with n - 1 degrees.
    """
    quantile = stats.t.ppf((1 + LEVEL) / 2, seeds - 1)
    return float(stats.norm.cdf(-math.sqrt(seeds / (seeds - 1)) * quantile))


def most_covered(seeds: int) -> float:
    """How often an interval within the range of n >= 2 seeds holds a median at most: all but all on one side of it."""
    return 1 - 2.0 ** (1 - seeds)


def percentile_ends(values: np.ndarray, statistic: Callable[..., np.ndarray], tail: float) -> tuple[float, float]:
    """The quantiles of the resampled statistic at ``tail`` and ``1 - tail``, of two values or more; exact for few.

    The statistic is called with ``axis=-1``.
    """
    if len(values) > ENUMERATED:
        # Of values that are all equal scipy gives nan for the ends.
        if np.ptp(values) == 0:
            return float(values[0]), float(values[0])
        found = stats.bootstrap(
            (values,),
            statistic,
            n_resamples=SEED_RESAMPLES,
            confidence_level=1 - 2 * tail,
            method="percentile",
            rng=generator(0, Purpose.CHECK, len(values)),
        ).confidence_interval
        return float(found.low), float(found.high)
    return resampled_ends(lambda places: statistic(values[places], axis=-1), len(values), tail)


def resampled_ends(statistic: Callable[[np.ndarray], np.ndarray], seeds: int, tail: float) -> tuple[float, float]:
    """The quantiles at ``tail`` and ``1 - tail`` of a statistic that needs to know which seeds a resample holds.

    Whatever it looks up by the same place stays paired. Quantiles are figures of resamples, never between two, so
    infinite ones are allowed. Exact for up to ``ENUMERATED`` seeds.

    Args:
        statistic: of (M, seeds) places from 0 to seeds - 1, a resample per line; gives (M,) figures, none of them nan.
        seeds: how many there are, >= 1.
        tail: share of resamples beyond each end, in (0, 0.5).
    """
    if seeds > ENUMERATED:
        places = generator(0, Purpose.CHECK, seeds).integers(seeds, size=(SEED_RESAMPLES, seeds))
        prob_M = np.full(SEED_RESAMPLES, 1 / SEED_RESAMPLES)
    else:
        places, prob_M = all_resamples(seeds)
    made_M = statistic(places)
    order_M = np.argsort(made_M, kind="stable")
    made_M, below_M = made_M[order_M], np.cumsum(prob_M[order_M])
    above_M = np.cumsum(prob_M[order_M][::-1])
    slack = 1e-12  # sums of probabilities carry rounding
    low = made_M[np.searchsorted(below_M, tail - slack)]
    high = made_M[::-1][np.searchsorted(above_M, tail - slack)]
    return float(low), float(high)


def all_resamples(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Every different resample of up to ``ENUMERATED`` seeds, (M, seeds) places, and its probability, (M,)."""
    places = list(combinations_with_replacement(range(seeds), seeds))
    counts_M = (Counter(resample).values() for resample in places)
    ways_M = [math.factorial(seeds) / math.prod(map(math.factorial, counts)) for counts in counts_M]
    return np.array(places), np.array(ways_M) / seeds**seeds


def student_interval(values: Sequence[float]) -> Estimate:
    """The mean of finite values, one per seed, with its interval by Student's t; nan ends for a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return Estimate(mean, mean - half, mean + half)


# -- over problems ------------------------------------------------------------------------------------------------


def problem_interval(
    value_P: Sequence[float] | np.ndarray,
    rng: np.random.Generator,
    span: tuple[float, float] = SHARES,
    resamples: int = RESAMPLES,
) -> Estimate:
    """``benchmark_interval`` of one set of problems, (P,) with P >= 1."""
    return benchmark_interval({"": np.asarray(value_P, dtype=np.float64)}, rng, span, resamples)


def benchmark_interval(
    sets: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    span: tuple[float, float] = SHARES,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The unweighted mean over benchmarks of their means; the interval is from resampling problems within each.

    Its ends are percentiles of the bootstrap. Where all problems of a benchmark have one value, resamples cannot
    differ: there, the interval holds every mean under which that has a probability of 2.5% or more. With P
    problems all wrong it ends at ``1 - 0.025 ** (1 / P)``: 0.12 of 30, 0.007 of 500. That of one benchmark is this
    formula; an average with others draws from the distribution it belongs to.

    Args:
        sets: (P,) figures by benchmark, P >= 1 each.
        rng: for the resamples.
        span: the least and the largest value a problem can have.
        resamples: M, >= 1.

    Raises:
        ConfigError: there is no benchmark, or one without problems.
    """
    empty = [name for name, values in sets.items() if len(values) == 0]
    if empty or not sets:
        where = f" in {empty[0]!r}" if empty and empty[0] else ""
        raise ConfigError(f"no problem to average over{where}: give one figure each, such as {{'math500': [0.0, 1.0]}}")
    if len(sets) == 1 and np.ptp(next(iter(sets.values()))) == 0:
        return _of_one_value(next(iter(sets.values())), span)
    ends = [_resampled(values, rng, span, resamples) for values in sets.values()]
    down_M, up_M = (np.mean([end[side] for end in ends], axis=0) for side in (0, 1))
    value = float(np.mean([values.mean() for values in sets.values()]))
    return Estimate(value, float(np.quantile(down_M, (1 - LEVEL) / 2)), float(np.quantile(up_M, (1 + LEVEL) / 2)))


def _of_one_value(value_P: np.ndarray, span: tuple[float, float]) -> Estimate:
    """The interval of one benchmark whose problems have one value: no draws, so equal cases have equal ends."""
    value = float(value_P[0])
    share = 1 - ((1 - LEVEL) / 2) ** (1 / len(value_P))
    return Estimate(value, value - (value - span[0]) * share, value + (span[1] - value) * share)


def _resampled(
    value_P: np.ndarray, rng: np.random.Generator, span: tuple[float, float], resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """(M,) means for the lower and for the upper end of an interval.

    A mean off the common value v by a share s of the way to an end of the span needs problems unlike v with a
    probability of at least s; P problems without one then have at most (1 - s)^P, the tail of Beta(1, P).
    """
    if value_P.min() < value_P.max():
        mean_M = bootstrap_means(value_P, rng, resamples)
        return mean_M, mean_M
    share_M = rng.beta(1, len(value_P), resamples)
    value = float(value_P[0])
    return value - (value - span[0]) * share_M, value + (span[1] - value) * share_M


def bootstrap_means(value_P: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """(M,) means of resamples of (P,) figures, one per problem, drawn with replacement.

    A resample is described by how often it holds each distinct value, which is multinomial: exact, and a thousand times
    cheaper than drawing problems where values are shares of a few samples.
    """
    distinct, counts = np.unique(np.asarray(value_P, dtype=np.float64), return_counts=True)
    problems = int(counts.sum())
    shares = counts / problems
    at_once = max(1, _CELLS // len(distinct))
    parts = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    return np.concatenate([rng.multinomial(problems, shares, size=part) @ distinct for part in parts]) / problems


def normal_interval(value_P: Sequence[float] | np.ndarray, span: tuple[float, float] = SHARES) -> Estimate:
    """The mean over (P,) problems with its interval, normal, from the spread of their own figures; within ``span``.

    Right when problems are a random sample, however many samples each was given. Of one problem it is all of ``span``.
    """
    value_P = np.asarray(value_P, dtype=np.float64)
    mean = float(value_P.mean())
    half = 1.96 * float(value_P.std(ddof=1)) / math.sqrt(len(value_P)) if len(value_P) > 1 else math.inf
    return Estimate(mean, max(span[0], mean - half), min(span[1], mean + half))
