"""InfoBatch on rows: below the mean loss of the dataset by chance, once an epoch, and not in the last eighth."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_rows import FULL, GRADIENT_NK, LENGTH_N, ROWS, SCORE_N, expectation, relative_error

from dppo.methods import ROW_METHODS
from dppo.pruning import RecordedScores
from dppo.step import RowSource
from dppo.verification.enumerate import every_way

INFOBATCH, KEPT = ROW_METHODS["infobatch"], ROW_METHODS["infobatch_kept"]


def source(method=INFOBATCH, size=40, seed=0, seen=True):
    scores = RecordedScores(np.arange(size, dtype=np.uint64), np.full(size, 10))
    if seen:
        scores.record(torch.arange(size), torch.arange(size).double())
    return RowSource(scores, method, seed=seed)


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_the_papers_formula(rate):
    """H_t(z) below the mean: dropped with probability r, else weighted by 1 / (1 - r); above: kept, weight 1."""
    method = replace(INFOBATCH, rows=INFOBATCH.rows.at_rate(rate))
    draw = source(method).draw(torch.arange(40), step=3, epoch=1)
    assert draw.keep_N[20:].all() and (draw.weight_N[20:] == 1).all()
    low = draw.keep_N[:20]
    assert low.sum() == 20 * (1 - rate)
    assert draw.weight_N[:20][low].tolist() == pytest.approx([1 / (1 - rate)] * int(low.sum()))


def test_the_mean_is_the_datasets_and_one_draw_stands_for_an_epoch():
    rows = source()
    low = torch.arange(20)  # all below the dataset's mean: of the step's own rows half would be
    first, again = rows.draw(low, step=3, epoch=1), rows.draw(low, step=4, epoch=1)
    assert first.prob_N.tolist() == [0.5] * 20 and torch.equal(first.keep_N, again.keep_N)
    rows.record(low, torch.full((20,), 100.0))
    assert torch.equal(rows.draw(low, step=5, epoch=1).keep_N, first.keep_N), "scores count from the next epoch on"
    assert not torch.equal(rows.draw(low, step=6, epoch=2).prob_N, first.prob_N)
    assert rows.draw(torch.arange(40), step=0, epoch=9, done=0.9).keep_N.all(), "the last eighth is not pruned"
    assert not rows.draw(torch.arange(40), step=0, epoch=10, done=0.5).keep_N.all()
    assert rows.draw(torch.arange(40), step=1, epoch=10, done=0.9).keep_N.all(), "from the middle of an epoch on too"
    assert source(seen=False).draw(low, step=0).keep_N.all(), "nor the first epoch"


def test_the_authors_mean_over_what_is_kept_is_biased_and_says_so():
    """By hand: of five rows those below the mean are kept half of the time, each draw a mean over its own tokens."""
    low = np.flatnonzero(SCORE_N.numpy() < SCORE_N.mean().item())
    assert len(low) == 3
    draws = list(every_way(lambda tape: KEPT.rows.draw(ROWS, tape)))
    by_hand = torch.zeros_like(FULL)
    for draw, chance in draws:
        keep, weight = draw.keep_N.numpy(), np.where(np.isin(np.arange(5), low), 1 / draw.prob_N.numpy(), 1.0)
        tokens = LENGTH_N[keep].sum()
        by_hand += chance * sum(weight[i] * GRADIENT_NK[i] for i in np.flatnonzero(keep)) / tokens
    found = expectation(KEPT)
    assert relative_error(found, by_hand) < 1e-12
    assert relative_error(found) > 0.05 and "biased" in KEPT.describe() and KEPT.biases
