"""Rules without chance: rows are ranked, some are kept for certain and the others dropped for certain. All biased."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dppo.pruning.probabilities import check_rate, finite

MAX_DENOMINATOR = 10**9
"""Rates are read as the fraction that was meant: 0.9 is 9/10, of which 1 - 0.9 in binary falls short."""


def largest(
    score_N: Tensor, *, rate: float, floor: float, cost_N: Tensor | None = None, group_N: Tensor | None = None
) -> Tensor:
    """1 for the ``floor(G * (1 - rate))`` largest scores of each group of G rows, 0 for the others: biased.

    The count is exact for decimal rates (0.1 of 10 rows is 1, not ``int(0.9999999999999998)``). Of equal scores, which
    binary rewards make the normal case, those with the lowest index are kept.

    Args:
        score_N: (N,) finite and >= 0.
        rate: share of each group to drop, in [0, 1).
        floor: not used: this rule drops rows for certain.
        cost_N: not used.
        group_N: (N,) integer, or None for one group.

    Returns:
        (N,) float64, 0 or 1. Scores [1, 3, 3, 3] with rate 0.5 give [0, 1, 1, 0].

    Raises:
        DesignError: a rate or score out of range.

    Source: CPPO, arXiv:2503.22342; over one group of all rows, its code for verl.
    """
    return _in_each_group(score_N, rate, group_N, _top, lambda rows, dropped: int(rows * (1 - dropped)))


def all_but_smallest(
    score_N: Tensor, *, rate: float, floor: float, cost_N: Tensor | None = None, group_N: Tensor | None = None
) -> Tensor:
    """0 for the ``floor(G * rate)`` smallest scores of each group of G rows, 1 for the others: biased.

    ``largest`` rounds what is kept, this rounds what is dropped: they differ by one row where ``G * rate`` is not an
    integer. Of equal scores those with the lowest index are kept.

    Args:
        score_N: (N,) finite and >= 0.
        rate: share of each group to drop, in [0, 1).
        floor: not used: this rule drops rows for certain.
        cost_N: not used.
        group_N: (N,) integer, or None for one group.

    Returns:
        (N,) float64, 0 or 1. Scores [1, 3, 3] with rate 0.5 give [0, 1, 1], where ``largest`` gives [0, 1, 0].

    Raises:
        DesignError: a rate or score out of range.

    Source: CPPO's code for TRL, where the groups are processes.
    """
    return _in_each_group(score_N, rate, group_N, _top, lambda rows, dropped: rows - int(rows * dropped))


def max_variance(
    score_N: Tensor, *, rate: float, floor: float, cost_N: Tensor | None = None, group_N: Tensor | None = None
) -> Tensor:
    """1 for the ``m = floor(G * (1 - rate))`` rows of each group of G with the largest variance of scores: biased.

    These are the i highest and the m - i lowest scores for some i, found in O(G log G). m is at least 2, since one row
    alone has no variance. Of all i with the largest variance the smallest is taken, and of equal scores those with
    the lowest index.

    Args:
        score_N: (N,) finite and >= 0, the reward up to a constant per group: ``above_lowest``.
        rate: share of each group to drop, in [0, 1).
        floor: not used: this rule drops rows for certain.
        cost_N: not used.
        group_N: (N,) integer, or None for one group.

    Returns:
        (N,) float64, 0 or 1. Scores [0, 1, 5, 6] with rate 0.5 give [1, 0, 0, 1].

    Raises:
        DesignError: a rate or score out of range.

    Source: PODS, arXiv:2504.13818, max-variance down-sampling.
    """

    def count(rows: int, dropped: Fraction) -> int:
        return min(max(int(rows * (1 - dropped)), 2), rows)

    return _in_each_group(score_N, rate, group_N, _widest, count)


def _in_each_group(
    score_N: Tensor,
    rate: float,
    group_N: Tensor | None,
    choose: Callable[[np.ndarray, int], np.ndarray],
    count: Callable[[int, Fraction], int],
) -> Tensor:
    """1 where ``choose(score_G, kept)`` says so within a group, with ``kept = count(G, rate)`` in exact arithmetic."""
    check_rate(rate, 0.0)
    score = finite("score", score_N)
    prob = np.zeros(len(score))
    dropped = Fraction(rate).limit_denominator(MAX_DENOMINATOR)
    group = np.zeros(len(score), np.int64) if group_N is None else group_N.numpy()
    rows_of = np.split(np.argsort(group, kind="stable"), np.cumsum(np.unique(group, return_counts=True)[1])[:-1])
    for row_G in rows_of if len(score) else ():
        prob[row_G[choose(score[row_G], count(len(row_G), dropped))]] = 1.0
    return torch.from_numpy(prob)


def _top(score_G: np.ndarray, kept: int) -> np.ndarray:
    """Places of the ``kept`` largest scores, of equal ones the first."""
    return np.argsort(-score_G, kind="stable")[:kept]


def _widest(score_G: np.ndarray, kept: int) -> np.ndarray:
    """Places of the ``kept`` scores of largest variance, of equal ones the first."""
    up = np.argsort(score_G, kind="stable")
    centred = score_G[up] - score_G.mean()
    total, square = (np.concatenate([[0.0], np.cumsum(value)]) for value in (centred, centred**2))
    high = np.arange(kept + 1)
    low = kept - high
    mean = (total[low] + total[-1] - total[len(up) - high]) / max(kept, 1)
    spread = square[low] + square[-1] - square[len(up) - high] - kept * mean**2
    best = int(np.argmax(spread >= spread.max() - 1e-9 * square[-1]))
    lowest = up[: kept - best]
    rest = np.setdiff1d(np.arange(len(up)), lowest)  # in the order of the index, so that ties go to the first here too
    return np.concatenate([lowest, rest[_top(score_G[rest], best)]])
