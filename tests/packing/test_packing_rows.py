"""Layout of rows: golden rows by hand; in random groups each label meets exactly its own context."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_models import SCORINGS, Setting, make_batch, prepare_rows
from refusals import refused

from dppo.errors import ShapeError
from dppo.packing import head
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import SEGMENT_SDPA
from dppo.packing.rows import UNSCORED, build_row, plan_rows, row_tokens
from dppo.packing.two_calls import two_calls

NO = UNSCORED


def ids(*tokens):
    return torch.tensor(tokens, dtype=torch.int64)


def contexts(row):
    """(completion, offset, label, visible tokens by position) of each scored position."""
    segments = row.segments
    owner = [s for s, length in enumerate(segments.length_S) for _ in range(length)]
    for place, completion, offset in zip(row.scored_L.tolist(), row.completion_L, row.offset_L, strict=True):
        seen = (owner[place], segments.trunk_S[owner[place]])
        keys = torch.tensor([key for key in range(place + 1) if owner[key] in seen])
        assert row.position_ids[0, keys].tolist() == list(range(len(keys))), "positions are 0, 1, .. without a gap"
        yield int(completion), int(offset), int(row.labels[0, place]), row.input_ids[0, keys].tolist()


def assert_every_label_meets_its_context(row, prompts, completions):
    """Each completion token is predicted once, from its prompt and the tokens before it alone."""
    found = sorted((k, offset, label, tuple(context)) for k, offset, label, context in contexts(row))
    wanted = sorted(
        (k, t, int(token), (*prompt.tolist(), *completion[:t].tolist()))
        for k, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        for t, token in enumerate(completion)
    )
    assert found == wanted
    assert int((row.labels != UNSCORED).sum()) == len(wanted)


PROMPT = [1, 2, 3]
BY_HAND = {
    "a prompt and two completions": (
        [PROMPT, PROMPT], [[4, 5, 6], [7, 8]], [0, 0],
        [1, 2, 3, 4, 5, 3, 7], [0, 1, 2, 3, 4, 2, 3], [NO, NO, 4, 5, 6, 7, 8], (2, 3, 2), (-1, 0, 0),
    ),
    "one completion is one sequence without its last token": (
        [PROMPT], [[4, 5, 6]], [0],
        [1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [NO, NO, 4, 5, 6], (5,), (-1,),
    ),
    "a prompt of one token has no trunk": (
        [[9], [9]], [[1, 2], [3]], [0, 0],
        [9, 1, 9], [0, 1, 0], [1, 2, 3], (2, 1), (-1, -1),
    ),
    "all trunks, then all branches, then what shares nothing": (
        [[1, 2], [3, 4], [3, 4], [5, 6, 7], [5, 6, 7]], [[8, 9], [10], [11, 12], [13], [14]], [0, 1, 1, 2, 2],
        [3, 5, 6, 4, 4, 11, 7, 7, 1, 2, 8], [0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2],
        [NO, NO, NO, 10, 11, 12, 13, 14, NO, 8, 9], (1, 2, 1, 2, 1, 1, 3), (-1, -1, 0, 0, 1, 1, -1),
    ),
    "an empty completion takes no place": (
        [PROMPT] * 3, [[4], [], [5, 6]], [0, 0, 0],
        [1, 2, 3, 3, 5], [0, 1, 2, 2, 3], [NO, NO, 4, 5, 6], (2, 1, 2), (-1, 0, 0),
    ),
}  # fmt: skip
"""Prompts, completions and their groups; tokens, positions and labels of the row, and its segments."""


@pytest.mark.parametrize("name", BY_HAND)
def test_rows_by_hand(name):
    prompts, completions, group, tokens, positions, labels, lengths, trunks = BY_HAND[name]
    row = build_row([ids(*p) for p in prompts], [ids(*c) for c in completions], group)
    assert (row.input_ids.tolist(), row.position_ids.tolist(), row.labels.tolist()) == ([tokens], [positions], [labels])
    assert (row.segments.length_S, row.segments.trunk_S) == (lengths, trunks)
    assert row.completions == len(prompts) and row.segments.total == len(tokens)
    assert row.unpack(row.labels, 3).tolist() == [c + [0] * (3 - len(c)) for c in completions]


def test_plans_by_hand():
    """A trunk of 4 and completions of 6: two fill a row of 16, the third needs another."""
    plan = plan_rows([0, 0, 0], [5, 5, 5], [6, 6, 6], 16)
    assert sorted(map(len, plan)) == [1, 2] and row_tokens([0] * 3, [5] * 3, [6] * 3, plan) == 16 + 10
    assert plan_rows([0, 0, 0], [5, 5, 5], [6, 6, 6], 22) == [[0, 1, 2]]
    assert [0] in plan_rows([0, 0, 1], [3, 3, 4], [50, 2, 3], 10), "longer than the row: alone and whole"
    assert plan_rows([0, 0, 1, 1], [5] * 4, [6, 6, 1, 2], 14, whole=True) == [[0, 1], [2, 3]], "a group is not split"
    assert plan_rows([0, 0], [3, 3], [0, 0], 10) == [] and plan_rows([], [], [], 10) == []


token = st.integers(1, 60)
group = st.tuples(st.lists(token, min_size=1, max_size=6), st.lists(st.lists(token, max_size=5), max_size=4))


@st.composite
def batches(draw):
    """Prompts, completions and group numbers in any order, some completions empty."""
    entries = [(p, c, g) for g, (p, cs) in enumerate(draw(st.lists(group, max_size=5))) for c in cs]
    entries = draw(st.permutations(entries))
    return [ids(*p) for p, _, _ in entries], [ids(*c) for _, c, _ in entries], [g for _, _, g in entries]


@settings(max_examples=150)
@given(batch=batches(), budget=st.integers(1, 60), shared=st.booleans())
def test_every_token_is_scored_once_in_its_context(batch, budget, shared):
    prompts, completions, numbers = batch
    numbers = numbers if shared else list(range(len(numbers)))
    P, C = [len(p) for p in prompts], [len(c) for c in completions]
    plan = plan_rows(numbers, P, C, budget)
    assert sorted(i for row in plan for i in row) == [i for i, n in enumerate(C) if n]

    total = 0
    for index in plan:
        assert len(index) == 1 or row_tokens(numbers, P, C, [index]) <= budget
        kept = [numbers[i] for i in index]
        changes = 1 + sum(a != b for a, b in pairwise(kept))
        assert changes == len(set(kept)), "completions of a group are neighbours"
        row = build_row([prompts[i] for i in index], [completions[i] for i in index], kept)
        assert_every_label_meets_its_context(row, [prompts[i] for i in index], [completions[i] for i in index])
        cost = sum(P[numbers.index(g)] - 1 for g in set(kept)) + sum(C[i] for i in index)
        assert row.input_ids.shape == (1, cost) and row_tokens(numbers, P, C, [index]) == cost
        assert row.segments.total == cost and min(row.segments.length_S) > 0
        calls = two_calls(row.segments, torch.device("cpu"))  # which refuses any other order
        assert calls.shared.stop == sum(n for s, n in enumerate(row.segments.length_S) if s in row.segments.trunk_S)
        total += cost
    assert total == row_tokens(numbers, P, C, plan)
    assert total <= sum(p - 1 + c for p, c in zip(P, C, strict=True) if c), "sharing never costs tokens"


@given(
    batch=batches().filter(lambda batch: any(map(len, batch[1]))),
    extra=st.integers(0, 3),
    seed=st.integers(0, 9),
    share=st.sampled_from([0.5, 1.0]),
)
def test_values_come_home_with_their_gradient_and_masks_only_take_labels_away(batch, extra, seed, share):
    prompts, completions, numbers = batch
    rng = torch.Generator().manual_seed(seed)
    scored = [torch.rand(len(c), generator=rng) < share for c in completions]
    row, masked = build_row(prompts, completions, numbers), build_row(prompts, completions, numbers, scored)
    assert masked.input_ids.equal(row.input_ids) and masked.position_ids.equal(row.position_ids)
    assert masked.segments == row.segments
    width = max(map(len, completions)) + extra
    kept, label = (
        torch.stack([torch.nn.functional.pad(values, (0, width - len(values))) for values in each])
        for each in (scored, completions)
    )
    assert row.unpack(row.labels, width).equal(label) and masked.unpack(masked.labels, width).equal(label * kept)
    assert int((masked.labels != UNSCORED).sum()) == int(kept.sum())

    value = torch.randn(row.input_ids.shape, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(prompts), width, generator=rng, dtype=torch.float64)
    (masked.unpack(value, width) * weight).sum().backward()
    assert masked.unpack(value.grad, width).equal(weight * kept)
    assert not value.grad[masked.labels == UNSCORED].any()


def test_rows_that_cannot_be_built_and_widths_that_would_move_values_are_refused():
    row = build_row([ids(1, 2)] * 2, [ids(3, 4, 5), ids(6)], [0, 0])
    with refused(ShapeError, "width=2", 3):
        row.unpack(torch.ones(1, row.segments.total), 2)
    with refused(ShapeError, "prompt 1"):
        build_row([ids(1), ids()], [ids(2), ids(3)], [0, 1])
    with refused(ShapeError, "1 completions"):
        build_row([ids(1)], [ids()], [0])
    with refused(ShapeError, "1 prompts", "2 completions"):
        build_row([ids(1)], [ids(2), ids(3)], [0, 0])


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_row_whose_tokens_are_all_masked_has_a_gradient_of_zero(monkeypatch, scoring):
    monkeypatch.setattr(head, "label_log_probs", scoring)
    model, batch = Setting("gemma3").model(prepare_rows), make_batch()
    row = build_row(batch.prompts, batch.completions, batch.group, [torch.zeros_like(c) for c in batch.completions])
    logp, entropy, *_ = row_log_probs(model, row, batch.width, kernel=SEGMENT_SDPA, entropy=True)
    assert not logp.any() and entropy is not None and not entropy.any()
    logp.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None for g in gradients), "every parameter has one, so collectives over ranks match"
    assert not any(g.any() for g in gradients)


@pytest.mark.skipif(len(SCORINGS) < 2, reason="this torch has no loss of its own in blocks")
def test_a_half_precision_head_gives_float32_log_probabilities(monkeypatch):
    """Products in bfloat16, softmax and the sum over blocks in float32: the wrong twin rounds to steps of 1/16."""
    monkeypatch.setattr(head, "BLOCK_LOGITS", 5_000)
    make = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(300, 64, generator=make).bfloat16(), torch.randn(500, 64, generator=make)
    weight, target = (0.3 * weight).bfloat16(), torch.randint(500, (300,), generator=make)
    upstream = torch.randn(300, generator=make)

    def scored(score, dtype):
        leaves = [x.detach().clone().to(dtype).requires_grad_() for x in (hidden, weight)]
        logp = score(*leaves, None, target)
        (logp * upstream.to(logp.dtype)).sum().backward()
        return logp.detach(), leaves[1].grad

    exact = scored(head.chunked_log_probs, torch.float64)
    logp, grad = scored(head.label_log_probs, torch.bfloat16)
    rounded, _ = scored(head.chunked_log_probs, torch.bfloat16)
    assert logp.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    off = [
        float((found.double() - wanted).norm() / wanted.norm())
        for found, wanted in ((logp, exact[0]), (rounded, exact[0]), (grad, exact[1]))
    ]
    assert off[0] < 1e-3 < off[1] and off[2] < 1e-2
