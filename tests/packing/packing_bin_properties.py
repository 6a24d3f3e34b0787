"""What a packing must be, as functions of the packer, so that wrong packers can be held to it too."""

import itertools
from collections.abc import Callable, Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

Packer = Callable[[Sequence[int], int], list[list[int]]]


def optimum(sizes: Sequence[int], capacity: int) -> int:
    """Fewest bins when an item that does not fit stands alone."""
    fit = [size for size in sizes if size <= capacity]

    def place(left: Sequence[int], loads: list[int]) -> int:
        if not left:
            return len(loads)
        tries = [place(left[1:], [*loads, left[0]])]
        for which, load in enumerate(loads):
            if load + left[0] <= capacity:
                tries.append(place(left[1:], [*loads[:which], load + left[0], *loads[which + 1 :]]))
        return min(tries)

    return len(sizes) - len(fit) + place(fit, [])


def smallest_largest_sum(costs: Sequence[int], bins: int) -> int:
    """What the dearest list costs in the best of all deals."""
    deals = itertools.product(range(bins), repeat=len(costs))
    return min(
        max(sum(cost for cost, to in zip(costs, deal, strict=True) if to == which) for which in range(bins))
        for deal in deals
    )


def sums(sizes: Sequence[float], bins: Iterable[Sequence[int]]) -> list[float]:
    """Sum of each bin."""
    return [sum(sizes[item] for item in items) for items in bins]


def every_item_once(sizes: Sequence[int], bins: list[list[int]]) -> None:
    """No item is lost or doubled, and no bin is empty."""
    assert sorted(itertools.chain.from_iterable(bins)) == list(range(len(sizes)))
    assert all(bins)


def within_capacity(sizes: Sequence[int], capacity: int, bins: list[list[int]]) -> None:
    """Only an item that is larger than a bin may overfill one, and stands alone there."""
    for items, total in zip(bins, sums(sizes, bins), strict=True):
        assert total <= capacity or len(items) == 1


def packs(packer: Packer, sizes: Sequence[int], capacity: int) -> None:
    """Both of the above."""
    bins = packer(sizes, capacity)
    every_item_once(sizes, bins)
    within_capacity(sizes, capacity, bins)


def packs_near_the_optimum(packer: Packer, sizes: Sequence[int], capacity: int) -> None:
    """The bound of first fit decreasing: 11/9 OPT + 6/9."""
    assert 9 * len(packer(sizes, capacity)) <= 11 * optimum(sizes, capacity) + 6


def ignores_the_order(packer: Packer, sizes: Sequence[int], capacity: int) -> None:
    """Not the items, but the sizes that meet in a bin are the same."""

    def content(sizes: Sequence[int]) -> list[list[int]]:
        return sorted(sorted(sizes[item] for item in items) for items in packer(sizes, capacity))

    assert content(sizes) == content(sizes[::-1]) == content(sorted(sizes))


def falsified(check: Callable[..., None], *strategies: st.SearchStrategy) -> bool:
    """Whether the property has a counter-example among the cases of ``strategies``."""

    @settings(database=None, report_multiple_bugs=False, max_examples=300)
    @given(st.tuples(*strategies))
    def search(case: tuple) -> None:
        check(*case)

    try:
        search()
    except AssertionError:
        return True
    return False
