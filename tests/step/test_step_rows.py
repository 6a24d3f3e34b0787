"""The rows of a step: a function of seed, step and scores, the same after a resume."""

import numpy as np
import pytest
import torch
from refusals import refused

from dppo.errors import CheckpointError
from dppo.methods import ROW_METHODS
from dppo.pruning import RecordedScores
from dppo.step import RowSource

SIZE = 32


def source(name="infobatch", size=SIZE):
    scores = RecordedScores(np.arange(size, dtype=np.uint64), np.full(size, 10))
    return RowSource(scores, ROW_METHODS[name], seed=0)


def walk(rows, steps):
    """Draws of some steps, each of which changes the scores of what it kept."""
    found = []
    for step in steps:
        block = torch.arange(8) + 8 * (step % 4)
        draw = rows.draw(block, step=step, epoch=step // 4)
        rows.scores.record(block[draw.keep_N], torch.linspace(0.1, 1 + step, int(draw.keep_N.sum())))
        found.append(draw.weight_N.tolist())
    return found


@pytest.mark.parametrize("name", ROW_METHODS)
@pytest.mark.parametrize("stop", [5, 8])
def test_a_resumed_source_draws_what_it_would_have_drawn(name, stop, tmp_path):
    before, after, forgetful = source(name), source(name), source(name)
    straight = walk(source(name), range(12))
    walk(before, range(stop))
    before.save(tmp_path)
    after.load(tmp_path)
    assert walk(after, range(stop, 12)) == straight[stop:]
    forgetful.load(tmp_path)
    forgetful.scores.score[:] = 1.0
    forgetful._epoch = None
    assert walk(forgetful, range(stop, 12)) != straight[stop:], "the wrong twin forgets what was recorded"


def test_a_damaged_draw_is_refused_and_that_of_another_dataset_is_made_anew(tmp_path):
    rows = source()
    walk(rows, range(6))
    rows.save(tmp_path)
    np.savez(tmp_path / "dppo_epoch.npz", epoch=np.int64(1), prob=np.ones(3))
    with refused(CheckpointError, "damaged"):
        source().load(tmp_path)
    rows.save(tmp_path)
    grown = source(size=SIZE + 8)
    assert grown.load(tmp_path) == SIZE
    assert len(grown.draw(torch.arange(SIZE + 8), step=6, epoch=1).weight_N) == SIZE + 8
