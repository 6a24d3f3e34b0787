"""Rows that move between ranks: every kept one is trained once, as it was, and no rank has much more than another."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from dealt_batches import SIZE, rolled_out
from hypothesis import given, settings
from hypothesis import strategies as st

from dppo.rng import Purpose, torch_generator
from dppo.trl.batch import Padded
from dppo.trl.grpo.rollouts import NOWHERE, GeneratedBatch, dealt, rank_batch, ranks_of_rows


def rows_of(batch):
    """Everything that a kept row is trained with, by its own first token; padding has no part in it."""
    found = []
    for row in batch.weight_UB.sum(0).nonzero()[:, 0].tolist():
        n = batch.completion_tokens[row]
        tokens = [batch.completion_ids, batch.loss_mask, *([] if batch.sampler_logp is None else [batch.sampler_logp])]
        own = [batch.advantage_B, batch.weight_UB.T]
        prompt = batch.prompt_ids[row, batch.prompt_mask[row].bool()].tolist()
        found.append([prompt, *(each[row, :n].tolist() for each in tokens), *(each[row].tolist() for each in own)])
    return found


def lengths_of(batches):
    prompt_N = torch.tensor([n for batch in batches for n in batch.prompt_tokens])
    return prompt_N, torch.tensor([n for batch in batches for n in batch.completion_tokens])[None]


def everywhere(batches, rank_N):
    """What every rank has after all have exchanged: the first time around says what each sends."""
    sent = []
    for rank, batch in enumerate(batches):
        dealt(batch, rank_N, rank, lambda rows: sent.extend(rows) or [])
    return [dealt(batch, rank_N, rank, lambda _: sent) for rank, batch in enumerate(batches)], sent


@pytest.mark.parametrize("shares_prompts", [True, False])
@pytest.mark.parametrize("sampler", [True, False])
def test_every_kept_row_is_trained_once_as_it_was(shares_prompts, sampler):
    batches = [rolled_out(rank, keep=(0.9, 0.1, 0.4)[rank], sampler=sampler) for rank in range(3)]
    weight_UN = torch.cat([batch.weight_UB for batch in batches], 1)
    group_N = torch.arange(len(batches) * SIZE) // 3 if shares_prompts else None
    rank_N = ranks_of_rows(*lengths_of(batches), weight_UN, 3, group_N=group_N)
    assert torch.equal(rank_N == NOWHERE, (weight_UN == 0).all(0))
    after, sent = everywhere(batches, rank_N)
    assert sent, "something moves"

    def everything(of):
        return sorted((row for batch in of for row in rows_of(batch)), key=str)

    assert everything(after) == everything(batches)
    for batch in after:
        assert batch.prompt_mask.dtype == batch.completion_mask.dtype == torch.int64
        assert batch.completion_ids.shape == batch.completion_mask.shape == batch.loss_mask.shape
        assert not batch.completion_ids[batch.completion_mask == 0].any()
        assert not batch.prompt_ids[batch.prompt_mask == 0].any() and batch.sizes.denominator == 3
    lost = replace(after[0], loss_mask=after[0].completion_mask)
    assert everything([lost, *after[1:]]) != everything(batches), "a mask left behind would be seen"


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 5))
def test_no_rank_has_much_more_than_the_mean(seed, ranks):
    """At most one completion above it, where each brings its prompt along."""
    rng = torch_generator(seed, Purpose.CHECK)
    count = ranks * 12
    prompt_N = torch.randint(1, 30, (count // 4,), generator=rng).repeat_interleave(4)
    completion_N = torch.randint(1, 200, (count,), generator=rng)
    weight_UN = (torch.rand(2, count, generator=rng) < 0.4) * 2.0
    rank_N = ranks_of_rows(prompt_N, completion_N[None], weight_UN, ranks)
    cost_N = (completion_N + prompt_N) * (weight_UN > 0).sum(0)
    cost_R = torch.stack([cost_N[rank_N == rank].sum() for rank in range(ranks)]).double()
    assert cost_R.max() <= cost_R.mean() + cost_N.max()


def test_sizes_of_the_full_batch_are_of_each_step_and_count_prompts_that_were_not_rolled_out():
    """By hand: tokens, completions, and those with tokens and no advantage. A completion stands for 2, 1 or 3."""
    whole = rolled_out(0)
    padded = {each.name: getattr(whole, each.name) for each in fields(Padded)}
    generated = GeneratedBatch(**padded, reward_NF=torch.zeros(SIZE, 1), place_B=torch.arange(SIZE))
    counted_UN = torch.tensor([[2, 2, 0, 0, 1, 0], [0, 0, 1, 1, 0, 3]], dtype=torch.float64)
    plan = SimpleNamespace(
        completions=SimpleNamespace(tokens_N=torch.tensor([2, 0, 3, 1, 4, 5])),
        advantage_N=torch.tensor([0, 0, 1, -1, 0, 2], dtype=torch.float64),
        counted_UN=counted_UN,
        weight_UN=counted_UN,
        token_draws=(),
        sizes=whole.sizes,
    )
    assert rank_batch(generated, plan, rank=0).full_U3.tolist() == [[8, 5, 3], [19, 5, 0]]
