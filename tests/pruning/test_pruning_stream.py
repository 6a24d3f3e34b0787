"""Prompt streams and blocks: order from the seed alone, resume anywhere, blocks fixed before the draw."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.pruning import PromptHistory, PromptPruning, PromptStream, proportional, threshold, uniform
from dppo.pruning.prompts import fill_block
from dppo.rng import generator
from dppo.types import Rewards


def history_of(seen: int) -> PromptHistory:
    """A history of 60 prompts, the first ``seen`` of which were rolled out once, a third of them without any signal."""
    rng, history = np.random.default_rng(0), PromptHistory(np.arange(60, dtype=np.uint64))
    signal = torch.from_numpy(rng.random(seen) * (rng.random(seen) > 0.33))
    tokens = torch.from_numpy(rng.integers(10, 500, (seen, 4)))
    if seen:
        history.update(np.arange(seen), Rewards.of_groups(torch.ones(seen, 4)), signal, tokens.flatten(), 0)
    return history


def test_each_epoch_has_every_row_once_in_an_order_of_its_own():
    stream = PromptStream(40, seed=3)
    epochs = [stream.take(40) for _ in range(4)]
    assert all(torch.equal(rows.sort().values, torch.arange(40)) for rows in epochs)
    assert len({tuple(rows.tolist()) for rows in epochs}) == 4
    assert epochs[0].dtype == torch.int64


@given(
    size=st.integers(1, 12),
    counts=st.lists(st.integers(0, 30), max_size=6),
    cut=st.integers(0, 6),
    shuffle=st.booleans(),
)
def test_resuming_anywhere_equals_not_stopping(size, counts, cut, shuffle):
    whole, before = PromptStream(size, 1, shuffle), PromptStream(size, 1, shuffle)
    expected = [whole.take(count).tolist() for count in counts]
    found = [before.take(count).tolist() for count in counts[:cut]]
    state = before.state_dict()
    assert set(state) == {"epoch", "offset"} and 0 <= state["offset"] < size
    after = PromptStream(size, 1, shuffle)
    after.load_state_dict(state)
    found += [after.take(count).tolist() for count in counts[cut:]]
    assert found == expected
    assert after.state_dict() == whole.state_dict()


def test_a_stream_that_stood_beyond_the_rows_of_a_smaller_dataset_begins_the_next_epoch():
    before, after = PromptStream(10, seed=1), PromptStream(6, seed=1)
    before.take(18)
    with pytest.warns(UserWarning, match="prompt 8 of an epoch, and the dataset has 6 now"):
        after.load_state_dict(before.state_dict())
    assert after.state_dict() == {"epoch": 2, "offset": 0}


@given(size=st.integers(1, 12), ahead=st.integers(0, 40), moved=st.integers(0, 30))
def test_peeking_shows_what_comes_and_moves_nothing(size, ahead, moved):
    stream = PromptStream(size, 1)
    stream.take(moved)
    assert torch.equal(stream.peek(ahead), stream.peek(ahead))
    assert torch.equal(stream.peek(ahead), stream.take(ahead))


@given(
    seen=st.integers(0, 60),
    prompts=st.integers(1, 20),
    rate=st.sampled_from([0.0, 0.2, 0.5, 0.75]),
    rule=st.sampled_from([proportional, threshold, uniform]),
    budget=st.sampled_from(["rows", "tokens"]),
    start=st.integers(0, 59),
)
def test_a_filled_block_expects_exactly_the_prompts_of_a_batch(seen, prompts, rate, rule, budget, start):
    stream, history = PromptStream(60, 2), history_of(seen)
    stream.take(start)
    pruning = PromptPruning(rate=rate, rule=rule, budget=budget, floor=0.2)
    upcoming = stream.peek(60)
    block, now = fill_block(stream, history, pruning, prompts, 1)
    row_M = block.row_P
    assert torch.equal(row_M, upcoming[: len(row_M)])
    assert prompts <= len(row_M) <= min(round(prompts / (1 - rate)), 60)
    assert stream.epoch * 60 + stream.offset == start + len(row_M)
    draws = [now.draw(block, generator(seed)) for seed in range(3)]
    assert all(draw.keep_N.sum() == prompts for draw in draws)
    assert draws[0].prob_N.sum().item() == pytest.approx(prompts, abs=1e-9)
    assert all(draw.keep_N[~block.seen_P].all() for draw in draws)
    assert draws[0].prob_N.min() >= 0.2 - 1e-9
