"""Groups of completions in flat arrays: ``(N,)`` values, and the number of each one's group.

Reductions run on matrices, one for the groups of each size. So a group gives the same bits in any company.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

ROUNDINGS = 4
"""Rewards of a group are equal if they differ by at most this number of roundings of the largest of them."""


def group_count(group_N: Tensor) -> int:
    """Q, the number of groups."""
    return int(group_N.max()) + 1 if len(group_N) else 0


def group_sizes(group_N: Tensor) -> Tensor:
    """(Q,) int64 members of each group."""
    return torch.bincount(group_N)


def group_sums(value_NF: Tensor, group_N: Tensor) -> Tensor:
    """(Q, F) sums of the values of each group."""
    return value_NF.new_zeros(group_count(group_N), value_NF.shape[1]).index_add_(0, group_N, value_NF)


def groups_by_size(group_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each size of groups, (Q,) their numbers and (Q, G) the places of their members."""
    count, row_N = group_count(group_N), torch.arange(len(group_N))
    if count and not len(group_N) % count and torch.equal(group_N, row_N // (len(group_N) // count)):
        yield torch.arange(count), row_N.view(count, -1)  # the usual case: one size, one group after the other
        return
    size_Q = group_sizes(group_N)
    member_N = torch.argsort(group_N, stable=True)
    start_Q = size_Q.cumsum(0) - size_Q
    for size in size_Q.unique().tolist():
        group_Q = (size_Q == size).nonzero()[:, 0]
        yield group_Q, member_N[start_Q[group_Q, None] + torch.arange(size)]


def each_group(reduce: Callable[..., Tensor], group_N: Tensor, *value_N: Tensor) -> Tensor:
    """(Q,) results of ``reduce`` on the values of each group; ``found_Q[group_N]`` repeats them for the members.

    ``reduce`` gets (Q, G) matrices, one for each of at least one (N,) ``value_N`` and with a group in each row, and
    gives (Q,). ``group_N`` are (N,) integers from 0 to Q - 1.
    """
    parts = [(group_Q, reduce(*(v[row_QG] for v in value_N))) for group_Q, row_QG in groups_by_size(group_N)]
    if not parts:
        return reduce(*(v.new_empty(0, 1) for v in value_N))
    group_Q, found_Q = (torch.cat(each) for each in zip(*parts, strict=True))
    return found_Q[group_Q.argsort()]


def equal_within_groups(group_N: Tensor, reward_N: Tensor, *, eps: float, largest_N: Tensor | None = None) -> Tensor:
    """(Q,) True for zero-variance groups: all rewards of the group are equal up to rounding.

    ``group_N`` (N,) are integers from 0 to Q - 1, ``reward_N`` (N,) rewards, NaN for a missing one, which is left out.
    A group without any reward has zero variance. ``eps`` is the relative distance of neighbouring numbers in the
    precision of rewards. ``largest_N`` (N,) >= 0 is the largest term of each reward, the scale of the tolerance if
    terms cancel in a sum; None if rewards are no sums.
    """
    missing_N = reward_N.isnan()
    largest_N = (reward_N.abs() if largest_N is None else largest_N).masked_fill(missing_N, 0.0)
    high_Q = each_group(lambda reward_QG: reward_QG.amax(1), group_N, reward_N.masked_fill(missing_N, -torch.inf))
    low_Q = each_group(lambda reward_QG: reward_QG.amin(1), group_N, reward_N.masked_fill(missing_N, torch.inf))
    largest_Q = each_group(lambda reward_QG: reward_QG.amax(1), group_N, largest_N)
    return high_Q - low_Q <= ROUNDINGS * eps * largest_Q
