"""Items into bins: every function places every item exactly once.

An item larger than a bin gets a bin of its own: cutting or dropping it would change the gradient.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from operator import index

import torch
from torch import Tensor

from dppo.errors import ConfigError


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices: largest item first, each into the fullest bin that still has room for it.

    At most ``11/9 OPT + 4`` bins (OPT, the fewest possible), with lengths of completions within one percent of OPT.
    Ties keep their order. ``best_fit_decreasing([4, 7, 3, 6], 10)`` is ``[[1, 2], [3, 0]]``.

    Source: Johnson, "Near-optimal bin packing algorithms" (1973); Johnson et al., SIAM J. Comput. 3 (1974).
    """
    sizes, bins = _checked(sizes, capacity), []
    count = len(sizes)
    roomy: list[int] = []  # room left * count + bin: one number sorts in half the time of a pair
    for item in sorted(range(count), key=sizes.__getitem__, reverse=True):
        at = bisect_left(roomy, sizes[item] * count)
        if at == len(roomy):
            roomy.append(capacity * count + len(bins))
            bins.append([])
        room, which = divmod(roomy.pop(at), count)
        bins[which].append(item)
        if room >= sizes[item]:
            insort(roomy, (room - sizes[item]) * count + which)
    return bins


def longest_processing_time(
    costs: Sequence[float], bins: int, *, home: Sequence[int] = (), count: float = math.inf, ties: Sequence[float] = ()
) -> list[list[int]]:
    """Exactly ``bins`` >= 1 lists of indices with similar sums: dearest item first, into the cheapest list so far.

    The largest sum is at most ``4/3 - 1/(3 bins)`` times the smallest possible. With fewer items than bins, or items
    that cost nothing, some lists are empty. ``longest_processing_time([3, 2, 2, 1], 2)`` is ``[[0, 3], [1, 2]]``.

    ``home`` is the list that each item is in already. An item stays there as long as the sum is at most the mean of all
    lists, so few items move. The largest sum is then at most the mean and ``(1 - 1/bins)`` times the dearest.
    ``count`` is the most items of a list. Of lists with equal sums the one with the smallest of ``ties`` is taken.

    Source: Graham, SIAM J. Appl. Math. 17 (1969); with ``home``, Graham, Bell System Technical Journal 45 (1966).
    """
    if bins < 1:
        raise ConfigError(f"bins={bins} must be at least 1. Write bins=1.")
    for item, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise ConfigError(f"item {item} costs {cost}. Costs must be finite and >= 0, such as tokens.")
    items = len(costs)
    if home and (len(home) != items or not all(0 <= which < bins for which in home)):
        raise ConfigError(f"home={list(home)!s:.60} must name one of {bins} bins, from 0, for each of {items} items.")
    if count * bins < items:
        raise ConfigError(f"count={count} leaves no place for some of {items} items. Write count={-(-items // bins)}.")
    lists: list[list[int]] = [[] for _ in range(bins)]
    loads, mean, left = [0.0] * bins, sum(costs) / bins, []
    for item in sorted(range(items), key=costs.__getitem__, reverse=True):
        if not home or loads[home[item]] + costs[item] > mean or len(lists[home[item]]) >= count:
            left.append(item)
        else:
            lists[home[item]].append(item)
            loads[home[item]] += costs[item]
    open_lists = [which for which in range(bins) if len(lists[which]) < count]
    cheapest = [(loads[which], ties[which] if ties else 0.0, which) for which in open_lists]
    heapq.heapify(cheapest)
    for item in left:
        load, tie, which = heapq.heappop(cheapest)
        lists[which].append(item)
        if len(lists[which]) < count:
            heapq.heappush(cheapest, (load + costs[item], tie, which))
    return lists


def split_group(shared: int, sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Parts of a group, few and of similar size: each costs ``shared`` once, and the sum of its items.

    The fewest possible parts are tried, then one more each time, each filled by longest processing time. If best fit
    decreasing needs fewer, its parts are taken. ``split_group(10, [30, 20, 25, 15], 60)`` is ``[[0, 3], [2, 1]]``.
    """
    sizes, room = _checked(sizes, capacity), capacity - shared
    alone = [[item] for item, size in enumerate(sizes) if size > room]
    fit = [item for item, size in enumerate(sizes) if size <= room]
    own, room = [sizes[item] for item in fit], max(room, 1)  # with no room all of these sizes are 0
    parts = best_fit_decreasing(own, room)
    for count in range(max(1, -(-sum(own) // room)), len(parts) + 1):
        even = longest_processing_time(own, count)
        if all(sum(own[at] for at in part) <= room for part in even):
            parts = even
            break
    return alone + [[fit[at] for at in part] for part in parts]


def sorted_micro_batches(width_NK: Tensor, max_tokens: int) -> list[Tensor]:
    """Indices of micro-batches, longest rows first, so that each is padded only to its own longest row.

    The K parts of a row, such as prompt and completion, are padded apart. A row longer than ``max_tokens`` is alone in
    its micro-batch. Rows of equal width keep their order. ``[[3], [8], [4]]`` and 8 tokens give ``[[1], [2, 0]]``.
    """
    order = torch.argsort(width_NK.sum(1), descending=True, stable=True)
    bounds, longest = [0], [0] * width_NK.shape[1]
    for row, of_row in enumerate(width_NK[order].tolist()):
        longest = list(map(max, longest, of_row))
        if row > bounds[-1] and (row + 1 - bounds[-1]) * sum(longest) > max_tokens:
            bounds.append(row)
            longest = of_row
    return [order[a:b] for a, b in pairwise([*bounds, len(order)]) if b > a]


def _checked(sizes: Sequence[int], capacity: int) -> list[int]:
    if capacity < 1:
        raise ConfigError(f"capacity={capacity} must be at least 1. Write capacity=8192.")
    values = list(map(index, sizes))
    for item, size in enumerate(values):
        if size < 0:
            raise ConfigError(f"item {item} has size {size}. Sizes must be at least 0, such as tokens.")
    return values
