"""Rows over ranks and optimizer steps, as verl cuts them up: nothing lost, nothing twice, and the gradient unbiased."""

from itertools import product

import pytest
import torch
from arrays import tensor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ShapeError
from dppo.pruning import TokenDraw
from dppo.verl.layout import Prefixes, engine_shares, forwarded, furthest, place, places, rows_needed
from dppo.verl.layout import scaled_gradient as scaled


def rows_of(lengths, tokens=None):
    """Rows without prompts, of these lengths, whose first tokens carry loss."""
    length_N, tokens_N = torch.tensor(lengths), torch.tensor(tokens or lengths)
    scored_NT = torch.arange(max(lengths)) < tokens_N[:, None]
    return Prefixes(prompt_N=torch.zeros_like(length_N), scored_NT=scored_NT, completion_N=length_N)


def mini_batches(placement, ranks, steps):
    """Rows of each rank and optimizer step, cut up as verl's workers do."""
    per_rank = placement.rows_per_step // ranks
    cut = [placement.row_B[start : start + per_rank] for start in range(0, len(placement.row_B), per_rank)]
    return {(rank, step): cut[rank * steps + step] for rank in range(ranks) for step in range(steps)}


@st.composite
def choices(draw):
    """Weights of a batch that is as long as ``rows_needed`` says, each row in one step's share."""
    steps, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(st.integers(0, steps - 1), st.booleans()), min_size=1, max_size=20))
    share = [step for step, _ in rows]
    size = rows_needed(max(map(share.count, range(steps))), steps, ranks)
    weight_UN = torch.zeros(steps, size, dtype=torch.float64)
    for row, (step, kept) in enumerate(rows):
        weight_UN[step, row] = float(kept) * (1 + row)
    lengths = draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
    return weight_UN, rows_of(lengths), ranks


@given(choices())
def test_every_kept_row_goes_to_one_rank_in_its_own_step_and_ranks_get_as_many_rows_and_about_as_many_tokens(chosen):
    weight_UN, rows, ranks = chosen
    placement = place(weight_UN, rows, ranks)
    assert len(set(placement.row_B)) == len(placement.row_B) == placement.rows_per_step * len(weight_UN)
    sent = mini_batches(placement, ranks, len(weight_UN))
    assert len(sent) == ranks * len(weight_UN)
    for step, weight_N in enumerate(weight_UN):
        here = {row for (_, at), taken in sent.items() if at == step for row in taken}
        assert {row for row in here if weight_UN[:, row].sum() > 0} == set(weight_N.nonzero()[:, 0].tolist())
        loads = [sum(int(rows.length_N[row]) for row in sent[rank, step]) for rank in range(ranks)]
        assert max(loads) - min(loads) <= int(rows.length_N.max())
    weights = dict(zip(placement.row_B, placement.weight_B.tolist(), strict=True))
    assert all(weights[row] == pytest.approx(float(weight_UN[:, row].sum())) for row in placement.row_B)


def test_the_longest_row_of_each_step_does_not_go_to_the_same_rank_each_time():
    placement = place(torch.eye(8).repeat_interleave(2, 1), rows_of([10, 1] * 8), ranks=2)
    assert [sum([10, 1][row % 2] for row in placement.row_B[start : start + 8]) for start in (0, 8)] == [44, 44]


def test_passes_before_the_update_go_over_the_rows_of_every_placement_once():
    rows = rows_of([9, 3, 5, 9, 9, 4, 8, 8])
    weight_UN = torch.zeros(2, 8)
    weight_UN[0, [0, 3]] = 2.0
    weight_UN[1, [3, 4, 7]] = 1.5
    placements = [place(weight_N[None], rows, ranks=2) for weight_N in weight_UN]
    assert int((placements[1].weight_B == 0).sum()) == 1
    found = forwarded(placements, rows, 2)
    assert set(found) >= {0, 3, 4, 7} | set(placements[1].row_B) and len(found) == len(set(found))
    assert len(found) % 2 == 0
    assert forwarded(placements[:1], rows, 2) == placements[0].row_B


def test_rows_are_asked_for_in_whole_mini_batches_of_all_ranks():
    assert [rows_needed(*each) for each in ((16, 2, 4), (3, 2, 2), (1, 3, 2))] == [32, 8, 6]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shares_of_the_engine_are_those_it_cuts_a_batch_into(ranks):
    share_UN = engine_shares(16, 8, ranks)
    assert share_UN.sum(0).tolist() == [1] * 16 and share_UN.sum(1).tolist() == [8, 8]
    per_rank, part = 16 // ranks, 8 // ranks
    for step in range(2):
        cut = [rank * per_rank + step * part + place for rank in range(ranks) for place in range(part)]
        assert share_UN[step].nonzero()[:, 0].tolist() == cut


def test_fillers_are_the_shortest_rows_that_were_dropped_and_weigh_nothing():
    placement = place(torch.tensor([[2.0, 0, 0, 4, 2, 0, 0, 0]]), rows_of([9, 3, 5, 9, 9, 4, 8, 8]), ranks=4)
    assert dict(zip(placement.row_B, placement.weight_B.tolist(), strict=True)) == {0: 2, 3: 4, 4: 2, 1: 0}
    nothing = place(torch.zeros(1, 4), rows_of([3, 1, 2, 4]), ranks=2)
    assert nothing.weight_B.tolist() == [0, 0] and set(nothing.row_B) == {1, 2}, "every rank still gets one row"
    fewer = place(torch.tensor([[2.0, 0, 4, 0]]), rows_of([4, 3, 2, 1]), ranks=1, scale=8 / 12)
    assert fewer.weight_B.tolist() == pytest.approx([4 / 3, 8 / 3]), "the engine divides by fewer completions"


def test_a_step_that_keeps_nothing_is_filled_with_rows_whose_tokens_can_be_divided_by():
    weight_UN = torch.tensor([[1.0, 1, 1, 0, 0, 0, 0, 0], [0.0] * 8])
    rows = rows_of([9, 9, 9, 7, 2, 2, 2, 2], tokens=[5, 5, 5, 5, 0, 0, 0, 0])
    sent = mini_batches(place(weight_UN, rows, ranks=2), 2, 2)
    assert sum(int(rows.tokens_N[row]) for rank in range(2) for row in sent[rank, 1]) == 5


GRADIENT_N = tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.0, 7.0, 7.0])
"""Gradient of the token sum of each row. The engine added the last two rows, whose weight must be 0."""
LENGTHS = [4, 2, 7, 3, 5, 6]
PROB_N = tensor([0.5, 0.75, 1.0, 0.25, 0.5, 0.9])


def engine_gradient(placement, rows):
    """Token-mean of the rows that are sent, as verl's engine computes it."""
    sent = torch.tensor(placement.row_B)
    return float((placement.weight_B.double() * GRADIENT_N[sent]).sum() / rows.tokens_N[sent].sum())


def expected_gradient(tokens_U, ranks):
    rows, expected = rows_of([*LENGTHS, 9, 9], [*LENGTHS, 0, 0]), 0.0
    for kept in product([0.0, 1.0], repeat=len(LENGTHS)):
        keep_N = tensor(kept)
        chance = float(torch.where(keep_N > 0, PROB_N, 1 - PROB_N).prod())
        weight_UN = torch.cat([keep_N / PROB_N, torch.zeros(2).double()])[None]
        if chance:
            expected += chance * engine_gradient(place(weight_UN, rows, ranks, tokens_U=tokens_U), rows)
    return expected


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_mean_over_the_tokens_sent_becomes_one_over_all_tokens(ranks):
    full = float(GRADIENT_N[: len(LENGTHS)].sum()) / sum(LENGTHS)
    assert expected_gradient(torch.tensor([float(sum(LENGTHS))]), ranks) == pytest.approx(full, rel=1e-6)
    assert abs(expected_gradient(None, ranks) / full - 1) > 0.05  # wrong: weights that do not make up for the tokens


def test_a_row_in_two_steps_and_too_few_rows_to_fill_up_with_are_errors():
    with refused(ShapeError, "each row in one step only"):
        place(torch.ones(2, 4), rows_of([1, 2, 3, 4]), ranks=2)
    with refused(ShapeError, "need 1 rows to fill up with, and 0 are left"):
        place(torch.ones(1, 3), rows_of([1, 2, 3]), ranks=2)
    with refused(ShapeError, "expected (steps, rows)"):
        place(torch.ones(1, 3), rows_of([1, 2]), ranks=1)


def test_completions_are_put_in_the_order_of_prompts_whatever_finished_first():
    keys = {0: "b_0_0", 1: "a_2_0", 2: "a_0_0", 3: "b_1_0"}
    shuffled = {row: keys[row] for row in (3, 1, 0, 2)}
    assert places(keys, ["a", "b"], [3, 2]) == places(shuffled, ["a", "b"], [3, 2]) == [2, -1, 1, 0, 3]
    for wrong in ("a_0_1", "a_2_0", "c_0_0"):  # several outputs of a session, too many sessions, an unknown prompt
        with refused(ShapeError, wrong):
            places({0: wrong}, ["a", "b"], [2, 2])


def test_a_scaled_gradient_leaves_the_value_alone():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    factor = torch.tensor([0.0, 1.0, 2.5])
    found = scaled(x.exp(), factor)
    found.sum().backward()
    assert torch.equal(found.detach(), x.detach().exp())
    torch.testing.assert_close(x.grad, factor * x.detach().exp())


def drawn(*weights):
    """A draw of these tokens, of any probabilities."""
    weight_NT = tensor(weights)
    draw = TokenDraw.of(weight_NT > 0, torch.ones_like(weight_NT), weight_NT.clamp_min(1).reciprocal())
    assert torch.equal(draw.weight_NT, weight_NT)
    return draw


def test_rows_end_at_their_cut_in_the_order_of_the_batch_and_those_that_are_not_drawn_behind_one_token_with_loss():
    """Three completions in rows 2, nowhere and 0; row 1 is a filler of the engine, and row 2 begins with a tool."""
    scored_BT = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).bool()
    row_N, prompt_B = torch.tensor([2, -1, 0]), torch.tensor([5, 127, 3])
    first = drawn([0, 0, 0, 0], [1, 1, 1, 1], [1, 2, 0, 0])
    second = drawn([1, 4, 4, 0], [0, 0, 0, 0], [0, 0, 0, 0])
    whole = Prefixes(prompt_N=prompt_B, scored_NT=scored_BT, completion_N=torch.tensor([4, 1, 3]))
    assert whole.length_N.tolist() == [9, 128, 6] and whole.tokens_N.tolist() == [4, 0, 2]
    cut = whole.cut([first, second], row_N)
    assert cut.completion_N.tolist() == [2, 1, 3] and cut.length_N.tolist() == [7, 128, 6]
    assert cut.weight_NT.tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [1, 4, 4, 0]]
    assert cut.tokens_N.tolist() == [2, 0, 2]
    alone = whole.cut([first], row_N)
    assert alone.completion_N.tolist() == [2, 1, 2], "the first token with loss of a row that may be sent to fill up"
    ones_PN = torch.ones(2, 3)
    further = furthest([alone, whole.cut([second], row_N)], ones_PN)
    assert further.completion_N.tolist() == cut.completion_N.tolist()
    assert further.weight_NT.tolist() == (cut.weight_NT / 2).tolist()
    uncut = furthest([whole, whole], torch.tensor([[2.0, 0, 1], [4.0, 0, 0]]))
    assert uncut.completion_N.tolist() == [4, 1, 3] and uncut.weight_NT.tolist() == [[3], [0], [0.5]]
