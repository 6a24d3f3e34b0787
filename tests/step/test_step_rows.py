"""The rows of a step: a function of seed, step and scores, the same after a resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dppo.errors import CheckpointError
from dppo.methods import ROW_METHODS
from dppo.pruning import RecordedScores
from dppo.step import RowSource, row_figures

SIZE = 32


def source(name="dppo", seed=0):
    scores = RecordedScores(np.arange(SIZE, dtype=np.uint64), np.full(SIZE, 10))
    return RowSource(scores, ROW_METHODS[name], seed=seed)


def walk(rows, steps):
    """Draws of some steps, each of which changes the scores of what it kept."""
    found = []
    for step in steps:
        block = torch.arange(8) + 8 * (step % 4)
        draw = rows.draw(block, step=step, epoch=step // 4)
        rows.record(block[draw.keep_N], torch.linspace(0.1, 1 + step, int(draw.keep_N.sum())))
        found.append(draw.weight_N.tolist())
    return found


@pytest.mark.parametrize("name", ROW_METHODS)
@pytest.mark.parametrize("stop", [5, 8])
def test_a_resumed_source_draws_what_it_would_have_drawn(name, stop, tmp_path):
    straight = walk(source(name), range(12))
    before = source(name)
    walk(before, range(stop))
    before.save(tmp_path)
    after = source(name)
    after.load(tmp_path)
    assert walk(after, range(stop, 12)) == straight[stop:]
    forgetful = source(name)
    forgetful.load(tmp_path)
    forgetful.scores.score[:] = 1.0
    forgetful._epoch = None
    assert walk(forgetful, range(stop, 12)) != straight[stop:], "the wrong twin forgets what was recorded"


def test_another_seed_and_another_step_are_other_draws():
    rows = source()
    rows.record(torch.arange(SIZE), torch.ones(SIZE))
    block = torch.arange(8)
    first = rows.draw(block, step=0)
    other = source(seed=1)
    other.record(torch.arange(SIZE), torch.ones(SIZE))
    assert first.keep_N.sum() == 4
    assert {tuple(rows.draw(block, step=step).keep_N.tolist()) for step in range(8)} > {tuple(first.keep_N.tolist())}
    assert any(not torch.equal(rows.draw(block, step=s).keep_N, other.draw(block, step=s).keep_N) for s in range(4))


def test_a_draw_of_another_dataset_is_refused(tmp_path):
    rows = source("infobatch")
    walk(rows, range(6))
    rows.save(tmp_path)
    with (tmp_path / "dppo_epoch.npz").open("wb") as file:
        np.savez(file, epoch=np.int64(1), prob=np.ones(3), weight=np.ones(3))
    with pytest.raises(CheckpointError, match="damaged or of another dataset"):
        source("infobatch").load(tmp_path)


def test_figures_of_a_draw():
    rows = source()
    rows.record(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    block = torch.arange(8)
    rows.method = replace(rows.method, rows=rows.method.rows.at_rate(0.5))
    draw = rows.draw(block, step=0)
    figures = row_figures(rows.scores.candidates(block), draw)
    assert figures["prune/kept_share"] == 6 / 8 and figures["prune/rows_with_score"] == 0.5
    assert figures["prune/tokens_trained"] == 60 and figures["prune/tokens_skipped"] == 20
    assert figures["prune/added_variance"] > 0 and figures["prune/largest_weight"] > 1
