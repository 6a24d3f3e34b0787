"""Groups of completions in flat arrays: ``(N,)`` values and the number of the group that each belongs to.

Groups may differ in size. What is computed per group is computed on matrices, one for the groups of each size, so that
a group gives the same bits whether the others are of its size or not.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

ROUNDINGS = 4
"""Rewards of a group that differ by no more than as many roundings of the largest of them are equal."""


def group_count(group_N: Tensor) -> int:
    """Q, how many groups there are."""
    return int(group_N.max()) + 1 if len(group_N) else 0


def group_sizes(group_N: Tensor) -> Tensor:
    """(Q,) int64 members of each group."""
    return torch.bincount(group_N, minlength=group_count(group_N))


def group_sums(value_NF: Tensor, group_N: Tensor) -> Tensor:
    """(Q, F) sums of the values of each group."""
    return value_NF.new_zeros(group_count(group_N), value_NF.shape[1]).index_add_(0, group_N, value_NF)


def groups_by_size(group_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(Q,) numbers of the groups of one size, and (Q, G) where their members are, for each size there is."""
    count, row_N = group_count(group_N), torch.arange(len(group_N))
    if count and not len(group_N) % count and torch.equal(group_N, row_N // (len(group_N) // count)):
        yield torch.arange(count), row_N.view(count, -1)  # as nearly always: of one size, one after the other
        return
    size_Q = group_sizes(group_N)
    member_N = torch.argsort(group_N, stable=True)
    start_Q = size_Q.cumsum(0) - size_Q
    for size in size_Q.unique().tolist():
        group_Q = (size_Q == size).nonzero()[:, 0]
        yield group_Q, member_N[start_Q[group_Q, None] + torch.arange(size)]


def each_group(reduce: Callable[..., Tensor], group_N: Tensor, *value_N: Tensor) -> Tensor:
    """(Q,) what ``reduce`` makes of the values of each group.

    Args:
        reduce: from (Q, G) matrices, one per value, a group in each line, to (Q,).
        group_N: (N,) integer from 0 to Q - 1.
        *value_N: (N,) each, at least one.

    Returns:
        (Q,) of the dtype that ``reduce`` gives. Spread it over the members with ``found_Q[group_N]``.
    """
    parts = [(group_Q, reduce(*(v[row_QG] for v in value_N))) for group_Q, row_QG in groups_by_size(group_N)]
    if not parts:
        return reduce(*(v.new_empty(0, 1) for v in value_N))
    all_Q = parts[0][1].new_empty(group_count(group_N))
    for group_Q, found_Q in parts:
        all_Q[group_Q] = found_Q
    return all_Q


def equal_within_groups(group_N: Tensor, reward_N: Tensor, *, eps: float, largest_N: Tensor | None = None) -> Tensor:
    """(Q,) True where all rewards of a group are equal up to rounding: the rule for what counts as a silent group.

    Args:
        group_N: (N,) integer from 0 to Q - 1.
        reward_N: (N,) rewards, NaN where there is none: those are left out. A group without any reward is silent.
        eps: relative distance of two neighbouring numbers of the precision that rewards were computed in.
        largest_N: (N,) size of the largest term of each reward, >= 0, which is what rounding goes by where terms cancel
            in a sum; None where rewards are no sums.
    """
    missing_N = reward_N.isnan()
    largest_N = (reward_N.abs() if largest_N is None else largest_N).masked_fill(missing_N, 0.0)
    high_Q = each_group(lambda reward_QG: reward_QG.amax(1), group_N, reward_N.masked_fill(missing_N, -torch.inf))
    low_Q = each_group(lambda reward_QG: reward_QG.amin(1), group_N, reward_N.masked_fill(missing_N, torch.inf))
    largest_Q = each_group(lambda reward_QG: reward_QG.amax(1), group_N, largest_N)
    return high_Q - low_Q <= ROUNDINGS * eps * largest_Q
