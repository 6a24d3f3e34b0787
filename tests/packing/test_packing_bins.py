"""Bins are those of the textbook rules, lists are balanced, and micro-batches stay within their budget."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError
from dppo.packing import sorted_micro_batches
from dppo.packing.bins import best_fit_decreasing, longest_processing_time, split_group

capacities = st.integers(1, 20)
some_sizes = st.lists(st.integers(0, 24), max_size=40)
few_sizes = st.lists(st.integers(0, 24), max_size=8)
GRAHAM = [3, 3, 2, 2, 2]


def optimum(sizes, capacity):
    """Fewest bins, by trying every packing. An item that does not fit stands alone."""
    fit = [size for size in sizes if size <= capacity]

    def place(left, loads):
        if not left:
            return len(loads)
        tries = [place(left[1:], [*loads, left[0]])]
        for which, load in enumerate(loads):
            if load + left[0] <= capacity:
                tries.append(place(left[1:], [*loads[:which], load + left[0], *loads[which + 1 :]]))
        return min(tries)

    return len(sizes) - len(fit) + place(fit, [])


def sums(sizes, bins):
    """Sum of each bin."""
    return [sum(sizes[item] for item in items) for items in bins]


def next_fit(sizes, capacity):
    """The wrong twin: in the order given, into one open bin."""
    bins, room = [], -1
    for item, size in enumerate(sizes):
        if size > room:
            bins.append([])
            room = capacity
        bins[-1].append(item)
        room -= size
    return bins


def is_best_fit(packer, sizes, capacity):
    """Equal to the textbook's scan over all bins."""
    bins, room = [], []
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        fits = [which for which in range(len(bins)) if room[which] >= sizes[item]]
        if fits:
            best = min(fits, key=room.__getitem__)
            bins[best].append(item)
            room[best] -= sizes[item]
        else:
            bins.append([item])
            room.append(capacity - sizes[item])
    assert packer(sizes, capacity) == bins


@given(sizes=some_sizes, capacity=capacities)
def test_best_fit_is_the_textbook_scan_over_all_bins(sizes, capacity):
    is_best_fit(best_fit_decreasing, sizes, capacity)


def loses_the_last(sizes, capacity):
    return best_fit_decreasing(sizes[:-1], capacity)


def overfills(sizes, capacity):
    return best_fit_decreasing(sizes, capacity + 1)


@pytest.mark.parametrize("wrong", [loses_the_last, overfills, next_fit])
def test_wrong_packers_are_caught(wrong):
    @settings(database=None, report_multiple_bugs=False, max_examples=300)
    @given(some_sizes, capacities)
    def search(sizes, capacity):
        is_best_fit(wrong, sizes, capacity)

    with pytest.raises(AssertionError):
        search()


def test_completions_are_packed_within_one_percent_of_the_optimum():
    rng = np.random.default_rng(0)
    sizes = (rng.integers(100, 201, 4096) + rng.lognormal(6, 0.5, 4096).astype(int).clip(1, 1024)).tolist()
    bound = math.ceil(sum(sizes) / 8192)
    assert len(best_fit_decreasing(sizes, 8192)) <= 1.01 * bound
    assert len(next_fit(sizes, 8192)) > 1.03 * bound, "the wrong twin"


@given(rows=some_sizes, bins=st.integers(1, 5), counted=st.booleans(), data=st.data())
def test_lists_take_the_dearest_item_left_into_the_cheapest_list_with_room(rows, bins, counted, data):
    costs = rows[: len(rows) // bins * bins]
    count = len(costs) // bins if counted else math.inf
    ties = data.draw(st.just([]) | st.lists(st.integers(0, 9), min_size=bins, max_size=bins))
    wanted, loads = [[] for _ in range(bins)], [0] * bins
    for item in sorted(range(len(costs)), key=lambda item: (-costs[item], item)):
        open_lists = [which for which in range(bins) if len(wanted[which]) < count]
        which = min(open_lists, key=lambda which: (loads[which], ties[which] if ties else 0))
        wanted[which].append(item)
        loads[which] += costs[item]
    assert longest_processing_time(costs, bins, count=count, ties=ties) == wanted


@given(data=st.data(), costs=st.lists(st.integers(0, 24), max_size=12), bins=st.integers(1, 5))
def test_lists_with_a_home_are_near_the_mean(data, costs, bins):
    home = data.draw(st.lists(st.integers(0, bins - 1), min_size=len(costs), max_size=len(costs)))
    lists = longest_processing_time(costs, bins, home=home)
    assert sorted(itertools.chain.from_iterable(lists)) == list(range(len(costs)))
    largest, dearest = max(sums(costs, lists)), max(costs, default=0)
    assert bins * largest <= sum(costs) + (bins - 1) * dearest


@given(shared=st.integers(0, 24), sizes=few_sizes, capacity=capacities)
def test_parts_of_a_group_hold_every_item_and_are_few(shared, sizes, capacity):
    parts = split_group(shared, sizes, capacity)
    assert sorted(itertools.chain.from_iterable(parts)) == list(range(len(sizes))) and all(parts)
    for part, total in zip(parts, sums(sizes, parts), strict=True):
        assert shared + total <= capacity or len(part) == 1
    room = capacity - shared
    fewest = optimum(sizes, room)
    assert fewest <= len(parts) <= (len(best_fit_decreasing(sizes, room)) if room > 0 else len(sizes))


BY_HAND = [
    (best_fit_decreasing(np.array([4, 7, 3, 6], dtype=np.uint8), 10), [[1, 2], [3, 0]], "numpy's integers"),
    (best_fit_decreasing(torch.tensor([4, 7, 3, 6]), 10), [[1, 2], [3, 0]], "torch's integers"),
    (best_fit_decreasing([3, 99, 3], 4), [[1], [0], [2]], "one that does not fit"),
    (best_fit_decreasing([], 4), [], "no items"),
    (longest_processing_time([0.5, 2.5], 3), [[1], [0], []], "more lists than items"),
    (longest_processing_time(GRAHAM, 2), [[0, 2, 4], [1, 3]], "7, where 6 is possible: the bound 4/3 - 1/6"),
    (longest_processing_time([3, 2, 2, 1], 2, home=[0, 0, 0, 1]), [[0, 2], [3, 1]], "the docstring's"),
    (longest_processing_time([2, 2, 2], 3, home=[2, 0, 1]), [[1], [2], [0]], "balanced already"),
    (longest_processing_time([5, 1, 1], 2, home=[0, 1, 1]), [[0], [1, 2]], "one dearer than the mean stays"),
    (longest_processing_time([], 2, home=[]), [[], []], "no items"),
    (longest_processing_time([0, 0, 0], 2, home=[0, 0, 0], count=2), [[0, 1], [2]], "the home is full"),
    (split_group(10, [30, 20, 25, 15], 60), [[0, 3], [2, 1]], "55 and 55, where best fit makes 60 and 50"),
    (split_group(10, [5, 5, 5], 60), [[0, 1, 2]], "a group that fits is one part"),
    (split_group(10, [5, 51, 5, 50], 60), [[1], [3], [0, 2]], "51 does not fit; 50 fits and leaves no room"),
    (split_group(4, [3, 3, 2, 2, 2], 10), [[0, 1], [2, 3, 4]], "balancing would need a third part"),
    (split_group(60, [0, 0, 1], 60), [[2], [0, 1]], "no room beside the prompt"),
    (split_group(61, [0, 0], 60), [[0], [1]], "not even the prompt fits"),
]


def test_by_hand():
    assert [why for found, wanted, why in BY_HAND if found != wanted] == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: best_fit_decreasing([1], 0), "capacity=0"),
        (lambda: best_fit_decreasing([1, -2, 3], 5), "item 1 has size -2"),
        (lambda: longest_processing_time([1], 0), "bins=0"),
        (lambda: longest_processing_time([1, 2], 2, home=[0]), "home=[0]"),
        (lambda: longest_processing_time([1], 2, home=[2]), "home=[2]"),
        (lambda: longest_processing_time([1, 1, 1], 2, count=1), "count=1"),
        (lambda: longest_processing_time([1, -0.5], 2), "item 1 costs -0.5"),
        (lambda: longest_processing_time([float("nan")], 2), "item 0 costs nan"),
        (lambda: split_group(1, [1], 0), "capacity=0"),
    ],
)
def test_what_makes_no_sense_is_named(call, named):
    with refused(ConfigError, named):
        call()


@pytest.mark.parametrize(
    ("widths", "budget", "wanted"),
    [([3, 8, 4], 8, [[1], [2, 0]]), ([5, 100, 5], 10, [[1], [0, 2]]), ([4] * 5, 8, [[0, 1], [2, 3], [4]]), ([], 8, [])],
    ids=["docstring", "longer than the budget", "ties", "nothing"],
)
def test_micro_batches_by_hand(widths, budget, wanted):
    assert [b.tolist() for b in sorted_micro_batches(torch.tensor(widths).long()[:, None], budget)] == wanted


@given(
    length_N=st.lists(st.integers(0, 50), max_size=40).map(lambda values: torch.tensor(values).long()),
    budget=st.integers(50, 200),
)
def test_never_more_padding_than_in_the_order_given(length_N, budget):
    unsorted, start = 0, 0
    while start < len(length_N):
        stop = start + 1
        while stop < len(length_N) and (stop + 1 - start) * int(length_N[start : stop + 1].max()) <= budget:
            stop += 1
        unsorted += (stop - start) * int(length_N[start:stop].max())
        start = stop
    batches = sorted_micro_batches(length_N[:, None], budget)
    assert sum(int(len(batch) * length_N[batch].max()) for batch in batches) <= unsorted + budget


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(1, 300), st.booleans())
def test_every_row_once_and_no_batch_over_budget(pairs, budget, one_part):
    """Also of rows of two parts, each padded for itself."""
    width_N2 = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)[:, : 2 - one_part]
    batches = sorted_micro_batches(width_N2, budget)
    assert sorted(i for b in batches for i in b.tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(width_N2[batch].amax(0).sum()) <= budget


def test_counting_a_row_as_one_length_would_break_the_budget():
    """The wrong twin: two rows of 20 tokens need 60 when prompts and answers are padded apart."""
    width_N2 = torch.tensor([[15, 5], [5, 15]])
    assert len(sorted_micro_batches(width_N2.sum(1, keepdim=True), 40)) == 1 and 2 * int(width_N2.amax(0).sum()) == 60
    assert len(sorted_micro_batches(width_N2, 40)) == 2
