"""Bins are those of the textbook rules, lists are balanced, and micro-batches stay within their budget."""

import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError
from dppo.packing import sorted_micro_batches
from dppo.packing.bins import best_fit_decreasing, longest_processing_time, split_group

capacities = st.integers(1, 20)
some_sizes = st.lists(st.integers(0, 24), max_size=40)
few_sizes = st.lists(st.integers(0, 24), max_size=8)
GRAHAM = [3, 3, 2, 2, 2]


def sums(sizes, bins):
    """Sum of each bin."""
    return [sum(sizes[item] for item in items) for items in bins]


def best_fit_by_scan(sizes, capacity):
    """The textbook's scan over all bins."""
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
    return bins


@given(sizes=some_sizes, capacity=capacities)
def test_best_fit_is_the_textbook_scan_over_all_bins(sizes, capacity):
    assert best_fit_decreasing(sizes, capacity) == best_fit_by_scan(sizes, capacity)


def next_fit(sizes, capacity):
    """Bins by next fit: items in the order given, with one open bin."""
    bins, room = [], -1
    for item, size in enumerate(sizes):
        if size > room:
            bins.append([])
            room = capacity
        bins[-1].append(item)
        room -= size
    return bins


def test_wrong_packers_are_caught():
    wrong = (
        lambda sizes, capacity: best_fit_decreasing(sizes[:-1], capacity),
        lambda sizes, capacity: best_fit_decreasing(sizes, capacity + 1),
        next_fit,
    )
    for packer in wrong:
        find(st.tuples(some_sizes, capacities), lambda case, packer=packer: packer(*case) != best_fit_by_scan(*case))


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
    assert sorted(chain.from_iterable(lists)) == list(range(len(costs)))
    largest, dearest = max(sums(costs, lists)), max(costs, default=0)
    assert bins * largest <= sum(costs) + (bins - 1) * dearest


@given(shared=st.integers(0, 24), sizes=few_sizes, capacity=capacities)
def test_parts_of_a_group_hold_every_item_and_are_few(shared, sizes, capacity):
    parts, room = split_group(shared, sizes, capacity), capacity - shared
    assert sorted(chain.from_iterable(parts)) == list(range(len(sizes))) and all(parts)
    assert all(total <= room or len(part) == 1 for part, total in zip(parts, sums(sizes, parts), strict=True))
    assert len(parts) <= (len(best_fit_decreasing(sizes, room)) if room > 0 else len(sizes))


def micro_batches(widths, budget):
    return [batch.tolist() for batch in sorted_micro_batches(torch.tensor(widths).long()[:, None], budget)]


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
    (micro_batches([3, 8, 4], 8), [[1], [2, 0]], "the docstring's"),
    (micro_batches([5, 100, 5], 10), [[1], [0, 2]], "longer than the budget"),
    (micro_batches([4] * 5, 8), [[0, 1], [2, 3], [4]], "ties"),
    (micro_batches([], 8), [], "no rows"),
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


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(1, 300), st.booleans())
def test_every_row_once_and_no_batch_over_budget(pairs, budget, one_part):
    """Also of rows of two parts, each padded for itself."""
    width_N2 = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)[:, : 2 - one_part]
    batches = sorted_micro_batches(width_N2, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(pairs)))
    assert all(len(b) == 1 or len(b) * int(width_N2[b].amax(0).sum()) <= budget for b in batches)
    totals = [int(width_N2[i].sum()) for batch in batches for i in batch]
    assert totals == sorted(totals, reverse=True)


def test_counting_a_row_as_one_length_would_break_the_budget():
    """The wrong twin: two rows of 20 tokens need 60 when prompts and answers are padded apart."""
    width_N2 = torch.tensor([[15, 5], [5, 15]])
    assert len(sorted_micro_batches(width_N2.sum(1, keepdim=True), 40)) == 1 and 2 * int(width_N2.amax(0).sum()) == 60
    assert len(sorted_micro_batches(width_N2, 40)) == 2
