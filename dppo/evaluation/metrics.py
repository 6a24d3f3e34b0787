"""Estimates from samples, and their intervals: pure functions of counts.

Dimension letters: ``P`` problems, ``R`` bootstrap resamples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

import numpy as np

from dppo.errors import ConfigError

RESAMPLES = 10_000
LEVEL = 0.95
SHARES = (0.0, 1.0)
"""The span of a share; of a difference of shares it is (-1, 1)."""
_CELLS = 2_000_000
"""Counts drawn at once: 16 megabytes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the ends of its 95% interval over problems."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """For a results file."""
        return asdict(self)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is right, from ``samples`` drawn: unbiased, in [0, 1].

    ``1 - C(n - c, k) / C(n, k)``, the share of the subsets of size k that hold a right one. At k = 1 it is the mean.

    Args:
        samples: n, drawn for the problem.
        right: c, how many of them are right, in [0, n].
        k: in [1, n].

    Raises:
        ConfigError: k or c out of range.

    Source: Chen et al. (2021), arXiv:2107.03374, section 2.1.
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ConfigError(f"pass@{k} of {samples} samples, {right} right: k must be in [1, samples]. Try k={samples}")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def maj_at_k(votes: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """The probability that the most frequent answer of ``k`` samples is right: mean over blocks of k samples in order.

    A sample votes for its answer. Samples judged right agree with each other, however they are spelt; others agree when
    their votes are equal. Samples without an answer do not vote; where nobody votes, 0. A tie is decided by lot: with
    m answers in front of which one is right, 1/m. Samples after the last whole block do not count.

    Args:
        votes: the answer of each sample, in a form that is equal for equal answers; None for none.
        right: whether each was judged right.
        k: samples of a vote, in [1, samples].

    Raises:
        ConfigError: k out of range.
    """
    if not 1 <= k <= len(votes):
        raise ConfigError(f"maj@{k} of {len(votes)} samples: k must be in [1, samples]. Try k={len(votes)}")
    starts = range(0, len(votes) - k + 1, k)
    return sum(_vote(votes[start : start + k], right[start : start + k]) for start in starts) / len(starts)


def _vote(votes: Sequence[str | None], right: Sequence[bool]) -> float:
    answers = [(True, "") if good else (False, vote) for vote, good in zip(votes, right, strict=True) if good or vote]
    counts = Counter(answers)
    front = [answer for answer, count in counts.items() if count == max(counts.values())]
    return ((True, "") in front) / len(front) if front else 0.0


def bootstrap_means(value_P: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> np.ndarray:
    """(R,) means of resamples of the problems, drawn with replacement.

    A resample is described by how often it holds each distinct value, which is multinomial: exact, and a thousand times
    cheaper than drawing problems where values are shares of a few samples.

    Args:
        value_P: (P,) one figure per problem, P >= 1.
        rng: where the draws come from.
        resamples: R, >= 1.
    """
    distinct_V, count_V = np.unique(np.asarray(value_P, dtype=np.float64), return_counts=True)
    problems = int(count_V.sum())
    share_V = count_V / problems
    at_once = max(1, _CELLS // len(distinct_V))
    parts = [min(at_once, resamples - start) for start in range(0, resamples, at_once)]
    return np.concatenate([rng.multinomial(problems, share_V, size=part) @ distinct_V for part in parts]) / problems


def estimate(
    value_P: Sequence[float] | np.ndarray, rng: np.random.Generator, span: tuple[float, float] = SHARES
) -> Estimate:
    """The mean over problems, with its interval: see ``average``.

    Args:
        value_P: (P,) one figure per problem, P >= 1.
        rng: for the resamples.
        span: the least and the largest value a problem can have.
    """
    return average({"": np.asarray(value_P, dtype=np.float64)}, rng, span)


def average(sets: Mapping[str, np.ndarray], rng: np.random.Generator, span: tuple[float, float] = SHARES) -> Estimate:
    """The unweighted mean over benchmarks of their means; the interval is from resampling problems within each.

    Its ends are percentiles of the bootstrap. Where all problems of a benchmark have one value, resamples cannot
    differ: there, the interval holds every mean under which that has a probability of 2.5% or more. With P
    problems all wrong it ends at ``1 - 0.025 ** (1 / P)``: 0.12 of 30, 0.007 of 500.

    Args:
        sets: (P,) figures by benchmark, P >= 1 each.
        rng: for the resamples.
        span: the least and the largest value a problem can have.
    """
    ends = [_resampled(values, rng, span) for values in sets.values()]
    down_R, up_R = (np.mean([end[side] for end in ends], axis=0) for side in (0, 1))
    value = float(np.mean([values.mean() for values in sets.values()]))
    return Estimate(value, float(np.quantile(down_R, (1 - LEVEL) / 2)), float(np.quantile(up_R, (1 + LEVEL) / 2)))


def _resampled(
    value_P: np.ndarray, rng: np.random.Generator, span: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """(R,) means for the lower and for the upper end of an interval.

    A mean off the common value v by a share s of the way to an end of the span needs problems unlike v with a
    probability of at least s; P problems without one then have at most (1 - s)^P, the tail of Beta(1, P).
    """
    if value_P.min() < value_P.max():
        mean_R = bootstrap_means(value_P, rng, RESAMPLES)
        return mean_R, mean_R
    share_R = rng.beta(1, len(value_P), RESAMPLES)
    value = float(value_P[0])
    return value - (value - span[0]) * share_R, value + (span[1] - value) * share_R


def default_ks(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``samples``, and ``samples`` itself."""
    powers = [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]
    return tuple(dict.fromkeys([*powers, samples]))


def breakdown(labels: Sequence[str | None], value_P: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The mean of each label's problems, by label in sorted order; empty where no problem has one.

    Args:
        labels: of each problem; None is counted as ``unknown`` where others have labels.
        value_P: (P,) one figure per problem.
        rng: for the resamples.
    """
    if not any(label is not None for label in labels):
        return {}
    names = np.array([label if label is not None else "unknown" for label in labels])
    groups = {str(name): value_P[names == name] for name in sorted(set(names.tolist()))}
    return {name: {"problems": len(values), **estimate(values, rng).as_json()} for name, values in groups.items()}
