"""Which items go into which bin: integers in, lists of indices out. Knows neither tokens nor tensors.

Every function places every item exactly once. An item larger than a bin gets a bin of its own, which nothing joins:
cutting or dropping it would change the gradient.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import index

from dppo.errors import ConfigError


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of indices: largest item first, each into the fullest bin that still has room for it.

    At most ``11/9 OPT + 4`` bins (OPT, the fewest possible), with lengths of completions within one percent of OPT.
    Which sizes end up together does not depend on the order given; items of equal size are dealt in that order.

    Source:
        Johnson, "Near-optimal bin packing algorithms" (1973); Johnson et al., SIAM J. Comput. 3 (1974). For first fit
        decreasing the constant is 6/9 (Dosa, ESCAPE 2007), which the tests hold this one to on small cases.

    Example:
        ``best_fit_decreasing([4, 7, 3, 6], 10)`` is ``[[1, 2], [3, 0]]``.
    """
    _check_capacity(capacity)
    return _best_fit(_checked(sizes), capacity)


def longest_processing_time(costs: Sequence[float], bins: int) -> list[list[int]]:
    """Exactly ``bins`` lists of indices with like sums: dearest item first, each into the cheapest list so far.

    The largest sum is at most ``4/3 - 1/(3 bins)`` times the smallest possible. With fewer items than bins, or items
    that cost nothing, some lists are empty.

    Source:
        Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969).

    Example:
        ``longest_processing_time([3, 2, 2, 1], 2)`` is ``[[0, 3], [1, 2]]``.
    """
    _check_costs(costs, bins)
    lists: list[list[int]] = [[] for _ in range(bins)]
    loads: list[tuple[float, int]] = [(0, which) for which in range(bins)]
    for item in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        load, which = loads[0]
        lists[which].append(item)
        heapq.heapreplace(loads, (load + costs[item], which))
    return lists


def rebalance(costs: Sequence[float], home: Sequence[int], bins: int) -> list[int]:
    """The bin of each item: the one it is in, unless that is too full; few items move, and sums come out alike.

    Dearest first, an item stays where it is as long as its bin then holds no more than the mean of all. What is left
    over goes by longest processing time, each into the bin with the smallest sum so far. The largest sum is at most the
    mean and ``(1 - 1/bins)`` times the dearest item.

    Source:
        The bound is that of list scheduling: Graham, "Bounds for certain multiprocessing anomalies", Bell System
        Technical Journal 45 (1966).

    Example:
        ``rebalance([3, 2, 2, 1], [0, 0, 0, 1], 2)`` is ``[0, 1, 0, 1]``: of 7 and 1 it makes 5 and 3.
    """
    _check_costs(costs, bins)
    if len(home) != len(costs) or not all(0 <= where < bins for where in home):
        raise ConfigError(
            f"home={list(home)!s:.60} must name one of {bins} bins, from 0, for each of {len(costs)} items."
        )
    mean, loads, to, left = sum(costs) / bins, [0.0] * bins, list(home), []
    for item in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        if loads[home[item]] + costs[item] <= mean:
            loads[home[item]] += costs[item]
        else:
            left.append(item)
    lightest = sorted((load, which) for which, load in enumerate(loads))
    for item in left:
        load, to[item] = lightest[0]
        heapq.heapreplace(lightest, (load + costs[item], to[item]))
    return to


def split_group(shared: int, sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Parts of a group, few and of like size: each costs ``shared`` once, and the sum of its items.

    Tries the fewest parts that could do, then one more each time. Parts are filled by longest processing time, which
    balances them; where best fit decreasing does with fewer parts than that, its parts are taken.

    Example:
        ``split_group(10, [30, 20, 25, 15], 60)`` is ``[[0, 3], [2, 1]]``: 55 and 55.
    """
    _check_capacity(capacity)
    sizes = _checked(sizes)
    if shared < 0:
        raise ConfigError(f"shared={shared}, but sizes are at least 0.")
    room = capacity - shared
    alone = [[item] for item, size in enumerate(sizes) if size > room]
    fit = [item for item, size in enumerate(sizes) if size <= room]
    if not fit:
        return alone
    return alone + [[fit[at] for at in part] for part in _even_parts([sizes[item] for item in fit], room)]


def fewest_bins(sizes: Sequence[int], capacity: int) -> int:
    """A number of bins that no packing can do with fewer than; the best one may need more.

    Items that do not fit take a bin each. The others need their total, and no two of them above half a bin can share.

    Example:
        ``fewest_bins([6, 6, 6, 1], 10)`` is 3.
    """
    _check_capacity(capacity)
    sizes = _checked(sizes)
    fit = [size for size in sizes if size <= capacity]
    by_total = -(-sum(fit) // capacity)
    by_half = sum(2 * size > capacity for size in fit)
    return len(sizes) - len(fit) + max(by_total, by_half, min(len(fit), 1))


def _best_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    """Every size in a bin, largest first."""
    bins: list[list[int]] = []
    left: list[int] = []
    most = len(sizes)
    roomy: list[int] = []  # room left * most + bin, one number each: half the time of pairs
    for item in sorted(range(most), key=sizes.__getitem__, reverse=True):
        size = sizes[item]
        at = bisect_left(roomy, size * most)
        if at < len(roomy):
            which = roomy.pop(at) % most
        else:
            which = len(bins)
            bins.append([])
            left.append(capacity)
        bins[which].append(item)
        left[which] -= size
        if left[which] >= 0:
            insort(roomy, left[which] * most + which)
    return bins


def _even_parts(sizes: list[int], capacity: int) -> list[list[int]]:
    """Few parts within ``capacity``, balanced where that needs no more of them; every size must fit a part."""
    packed = _best_fit(sizes, capacity)
    for count in range(fewest_bins(sizes, max(capacity, 1)), len(packed) + 1):
        parts = longest_processing_time(sizes, count)
        if all(sum(sizes[item] for item in part) <= capacity for part in parts):
            return parts
    return packed


def _check_costs(costs: Sequence[float], bins: int) -> None:
    if bins < 1:
        raise ConfigError(f"bins={bins}, but items need at least 1 bin to go into. Write bins=1.")
    for item, cost in enumerate(costs):
        if not 0 <= cost < math.inf:
            raise ConfigError(f"item {item} costs {cost}, but costs are finite and at least 0, such as tokens.")


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ConfigError(f"capacity={capacity}, but a bin holds at least 1. Write capacity=8192.")


def _checked(sizes: Iterable[int]) -> list[int]:
    """The sizes as Python integers."""
    values = [index(size) for size in sizes]
    if values and min(values) < 0:
        item = next(item for item, size in enumerate(values) if size < 0)
        raise ConfigError(f"item {item} has size {values[item]}, but sizes are at least 0, such as tokens.")
    return values
