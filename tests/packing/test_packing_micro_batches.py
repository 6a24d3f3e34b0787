import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.packing import sorted_micro_batches

lengths = st.lists(st.integers(0, 50), max_size=40).map(lambda values: torch.tensor(values, dtype=torch.int64))


def padded_tokens(length_N, batches):
    """Tokens a forward over ``batches`` computes, padding included: the sum of rows times the longest row."""
    return sum(int(len(batch) * length_N[batch].max()) for batch in batches)


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


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(1, 300))
def test_parts_padded_each_for_itself_stay_within_the_budget(pairs, budget):
    width_N2 = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    batches = sorted_micro_batches(width_N2, budget)
    assert sorted(i for b in batches for i in b.tolist()) == list(range(len(pairs)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(width_N2[batch].amax(0).sum()) <= budget


def test_counting_a_row_as_one_length_would_break_the_budget():
    """A long prompt with a short answer beside a short prompt with a long answer: 20 tokens each, 40 when padded."""
    width_N2 = torch.tensor([[15, 5], [5, 15]])
    assert len(sorted_micro_batches(width_N2.sum(1), 40)) == 1 and 2 * int(width_N2.amax(0).sum()) == 60
    assert len(sorted_micro_batches(width_N2, 40)) == 2


def test_a_row_longer_than_the_budget_stands_alone_and_whole():
    assert [b.tolist() for b in sorted_micro_batches(torch.tensor([5, 100, 5]), 10)] == [[1], [0, 2]]


def test_ties_keep_the_order_given():
    assert [b.tolist() for b in sorted_micro_batches(torch.full((5,), 4), 8)] == [[0, 1], [2, 3], [4]]


def test_no_rows_no_batches():
    assert sorted_micro_batches(torch.tensor([], dtype=torch.int64), 8) == []
