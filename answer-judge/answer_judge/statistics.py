"""95% intervals over the problems of one or several benchmarks, by the percentile bootstrap."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from answer_judge.errors import ConfigError

LEVEL = 0.95
SHARES = (0.0, 1.0)
"""The span of a share; of a difference of shares it is (-1, 1)."""
RESAMPLES = 10_000
"""Random resamples of problems."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the ends of its 95% interval."""

    value: float
    low: float
    high: float


def benchmark_interval(
    sets: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    span: tuple[float, float] = SHARES,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The unweighted mean over benchmarks of their means; the interval is from M resamples of problems within each.

    Each has (P,) figures, P >= 1, within ``span``.

    Its ends are percentiles of the bootstrap. If all problems of a benchmark have one value, resamples cannot differ.
    The interval then holds every mean under which that has a probability of 2.5% or more. With P problems all wrong it
    ends at ``1 - 0.025 ** (1 / P)``: 0.12 of 30, 0.007 of 500. An average with others draws from the distribution that
    this formula belongs to.

    Raises:
        ConfigError: there is no benchmark, or one without problems.
    """
    empty = [name for name, values in sets.items() if len(values) == 0]
    if empty or not sets:
        where = f" in {empty[0]!r}" if empty and empty[0] else ""
        raise ConfigError(f"no problem to average over{where}: give one figure each, such as {{'math500': [0.0, 1.0]}}")
    first_P = next(iter(sets.values()))
    if len(sets) == 1 and np.ptp(first_P) == 0:  # no draws, so equal cases have equal ends
        value, share = float(first_P[0]), 1 - ((1 - LEVEL) / 2) ** (1 / len(first_P))
        return Estimate(value, value - (value - span[0]) * share, value + (span[1] - value) * share)
    ends = [_resampled(values, rng, span, resamples) for values in sets.values()]
    down_M, up_M = (np.mean([end[side] for end in ends], axis=0) for side in (0, 1))
    value = float(np.mean([values.mean() for values in sets.values()]))
    return Estimate(value, float(np.quantile(down_M, (1 - LEVEL) / 2)), float(np.quantile(up_M, (1 + LEVEL) / 2)))


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

    A resample is the count of each distinct value, which is multinomial: exact, and a thousand times cheaper than
    drawing problems if values are shares of a few samples.
    """
    distinct, counts = np.unique(np.asarray(value_P, dtype=np.float64), return_counts=True)
    problems = int(counts.sum())
    return rng.multinomial(problems, counts / problems, size=resamples) @ distinct / problems
