"""InfoBatch: prompts, or rows once an epoch, below the mean are dropped by chance and weighted, except at the end."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_rows
import torch
from arrays import candidates_of

from dppo.methods import METHODS, ROW_METHODS
from dppo.pruning import PIVOTAL, RecordedScores
from dppo.rng import Purpose, generator
from dppo.step import RowSource
from dppo.verification.enumerate import every_way

INFOBATCH, ROWS_METHOD, KEPT = METHODS["infobatch"], ROW_METHODS["infobatch"], ROW_METHODS["infobatch_kept"]
SIZE = 64
BLOCK = candidates_of(list(range(SIZE)))
"""Half of it is below the mean."""


def source(method=ROWS_METHOD, size=SIZE, seen=True):
    scores = RecordedScores(np.arange(size, dtype=np.uint64), np.full(size, 10))
    if seen:
        scores.record(torch.arange(size), torch.arange(size).double())
    return RowSource(scores, method, seed=0)


def drawn_prompts(rate):
    return INFOBATCH.with_rates(prompt=rate).prompts.draw(BLOCK, generator(3, Purpose.CHECK))


def drawn_rows(rate):
    method = replace(ROWS_METHOD, rows=ROWS_METHOD.rows.at_rate(rate))
    return source(method).draw(torch.arange(SIZE), step=3, epoch=1)


@pytest.mark.parametrize("drawn", [drawn_prompts, drawn_rows])
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_the_papers_formula(rate, drawn):
    """H_t(z) below the mean: dropped with probability r, else weighted by 1 / (1 - r); above: kept, weight 1."""
    draw, half = drawn(rate), SIZE // 2
    assert draw.keep_N[half:].all() and (draw.weight_N[half:] == 1).all()
    low_N = draw.keep_N[:half]
    assert draw.prob_N[:half].tolist() == pytest.approx([1 - rate] * half) and 0 < low_N.sum() < half
    assert draw.weight_N[:half].tolist() == pytest.approx((low_N / (1 - rate)).tolist())
    if drawn is drawn_prompts:
        assert draw.weight_N.sum() == pytest.approx(SIZE), "a step stands for all its candidates"


def test_infobatch_prunes_in_seven_eighths_of_a_run():
    assert [INFOBATCH.at(done).prompts.rate for done in (0.0, 0.5, 0.874, 0.875, 1.0)] == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert INFOBATCH.at(0.9).prompts.draw(BLOCK, generator(0)).keep_N.all()
    assert not INFOBATCH.biases() and "rate by schedule stop" in INFOBATCH.describe()
    assert INFOBATCH.completions.rate == 0


def kept_together(method):
    """Chance that two of the rows below the mean are both kept: of one draw for an epoch, each in a step of its own."""
    four = BLOCK.take(torch.arange(4))
    return sum(chance for draw, chance in every_way(lambda tape: method.rows.draw(four, tape)) if draw.keep_N[:2].all())


def test_a_step_of_an_epoch_says_nothing_of_the_next_one():
    assert kept_together(ROWS_METHOD) == pytest.approx(0.25)
    twin = replace(ROWS_METHOD, rows=replace(ROWS_METHOD.rows, design=PIVOTAL))
    assert kept_together(twin) == 0, "a draw of a fixed size keeps one of the two"


def test_the_mean_is_the_datasets_and_one_draw_stands_for_an_epoch():
    rows, all_rows = source(size=40), torch.arange(40)
    low = all_rows[:20]  # all below the dataset's mean: of the step's own rows half would be
    first, again = rows.draw(low, step=3, epoch=1), rows.draw(low, step=4, epoch=1)
    assert first.prob_N.tolist() == [0.5] * 20 and torch.equal(first.keep_N, again.keep_N)
    rows.scores.record(low, torch.full((20,), 100.0))
    assert torch.equal(rows.draw(low, step=5, epoch=1).keep_N, first.keep_N), "scores count from the next epoch on"
    assert not torch.equal(rows.draw(low, step=6, epoch=2).prob_N, first.prob_N)
    assert rows.draw(all_rows, step=0, epoch=9, done=0.9).keep_N.all(), "the last eighth is not pruned"
    assert not rows.draw(all_rows, step=0, epoch=10, done=0.5).keep_N.all()
    assert rows.draw(all_rows, step=1, epoch=10, done=0.9).keep_N.all(), "from the middle of an epoch on too"
    assert source(size=40, seen=False).draw(low, step=0).keep_N.all(), "nor the first epoch"


def test_the_authors_mean_over_what_is_kept_is_biased_and_says_so():
    """By hand: of five rows those below the mean are kept half of the time, each draw a mean over its own tokens."""
    low_N = tiny_rows.ROWS.signal_P < tiny_rows.ROWS.signal_P.mean()
    length_N, by_hand = torch.from_numpy(tiny_rows.LENGTH_N), torch.zeros_like(tiny_rows.FULL)
    assert low_N.sum() == 3
    for draw, chance in every_way(lambda tape: KEPT.rows.draw(tiny_rows.ROWS, tape)):
        weight_N = draw.keep_N * torch.where(low_N, 1 / draw.prob_N, 1.0)
        by_hand += chance * weight_N @ tiny_rows.GRADIENT_NK / length_N[draw.keep_N].sum()
    found = tiny_rows.expectation(KEPT)
    assert tiny_rows.relative_error(found, by_hand) < 1e-12
    assert tiny_rows.relative_error(found) > 0.05 and "biased" in KEPT.describe() and KEPT.biases
