import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.packing import padded_tokens, sorted_micro_batches

lengths = st.lists(st.integers(0, 50), max_size=40).map(lambda values: torch.tensor(values, dtype=torch.int64))
parts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30).map(
    lambda pairs: torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
)


def listed(*arguments):
    return [batch.tolist() for batch in sorted_micro_batches(*arguments)]


@given(width_N2=st.one_of(lengths.map(lambda length_N: length_N[:, None]), parts), budget=st.integers(1, 300))
def test_every_row_once_and_no_batch_over_budget(width_N2, budget):
    """Of one length for each row, or of parts that are padded each for itself."""
    batches = sorted_micro_batches(width_N2[:, 0] if width_N2.shape[1] == 1 else width_N2, budget)
    assert sorted(i for b in batches for i in b.tolist()) == list(range(len(width_N2)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(width_N2[batch].amax(0).sum()) <= budget


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


def test_counting_a_row_as_one_length_would_break_the_budget():
    """A long prompt with a short answer, a short prompt with a long answer: 20 tokens each, 40 when padded."""
    width_N2 = torch.tensor([[15, 5], [5, 15]])
    assert len(listed(width_N2.sum(1), 40)) == 1 and 2 * int(width_N2.amax(0).sum()) == 60
    assert len(listed(width_N2, 40)) == 2


def test_batches_by_hand():
    length_N = torch.tensor([3, 8, 4])
    assert listed(length_N, 8) == [[1], [2, 0]] and padded_tokens(length_N, sorted_micro_batches(length_N, 8)) == 16
    assert listed(torch.tensor([5, 100, 5]), 10) == [[1], [0, 2]], "longer than the budget: alone and whole"
    assert listed(torch.full((5,), 4), 8) == [[0, 1], [2, 3], [4]], "ties keep the order given"
    assert listed(torch.tensor([], dtype=torch.int64), 8) == []
