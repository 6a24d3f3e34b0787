import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.packing import padded_tokens, sorted_micro_batches

lengths = st.lists(st.integers(0, 50), max_size=40).map(lambda values: torch.tensor(values, dtype=torch.int64))


def test_the_example_of_the_docstring():
    batches = sorted_micro_batches(torch.tensor([3, 8, 4]), 8)
    assert [b.tolist() for b in batches] == [[1], [2, 0]]
    assert padded_tokens(torch.tensor([3, 8, 4]), batches) == 16


@given(length_N=lengths, budget=st.integers(1, 200))
def test_every_row_once_and_no_batch_over_budget(length_N, budget):
    batches = sorted_micro_batches(length_N, budget)
    assert sorted(i for b in batches for i in b.tolist()) == list(range(len(length_N)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(length_N[batch].max()) <= budget


@given(length_N=lengths, budget=st.integers(50, 200))
def test_never_more_padding_than_in_the_order_given(length_N, budget):
    """The same greedy rule without sorting, which is what padding costs when nobody sorts."""
    unsorted, start = 0, 0
    while start < len(length_N):
        stop = start + 1
        while stop < len(length_N) and (stop + 1 - start) * int(length_N[start : stop + 1].max()) <= budget:
            stop += 1
        unsorted += (stop - start) * int(length_N[start:stop].max())
        start = stop
    assert padded_tokens(length_N, sorted_micro_batches(length_N, budget)) <= unsorted + budget


def test_a_row_longer_than_the_budget_stands_alone_and_whole():
    assert [b.tolist() for b in sorted_micro_batches(torch.tensor([5, 100, 5]), 10)] == [[1], [0, 2]]


def test_ties_keep_the_order_given():
    assert [b.tolist() for b in sorted_micro_batches(torch.full((5,), 4), 8)] == [[0, 1], [2, 3], [4]]


def test_no_rows_no_batches():
    assert sorted_micro_batches(torch.tensor([], dtype=torch.int64), 8) == []
