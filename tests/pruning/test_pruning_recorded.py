"""Recorded scores: what a row had at its last visit, kept by what it holds."""

import math

import numpy as np
import torch
from refusals import refused

from dppo.errors import CheckpointError, DataError
from dppo.pruning import RecordedScores
from dppo.pruning.recorded import mean_loss


def scores(size=4, first=10):
    return RecordedScores(np.arange(first, first + size, dtype=np.uint64), np.arange(1, size + 1))


def test_rows_without_a_score_are_unseen_and_the_last_visit_counts():
    found = scores()
    assert found.seen == 0 and not found.candidates(torch.arange(4)).seen_P.any()
    found.record(torch.tensor([1, 3]), torch.tensor([2.0, 5.0]))
    found.record(torch.tensor([3]), torch.tensor([0.5]))
    candidates = found.candidates(torch.tensor([3, 0, 1]))
    assert candidates.seen_P.tolist() == [True, False, True] and candidates.signal_P.tolist() == [0.5, 0.0, 2.0]
    assert candidates.tokens_P.tolist() == [4.0, 1.0, 2.0] and found.seen == 2


def test_a_score_that_is_not_finite_leaves_the_row_as_it_was():
    found = scores()
    found.record(torch.tensor([0, 1, 2]), torch.tensor([1.0, math.nan, math.inf]))
    found.record(torch.tensor([0]), torch.tensor([-1.0]))
    assert found.score[0] == 1.0 and found.seen == 1


def test_scores_are_found_again_by_what_rows_hold(tmp_path):
    before = scores()
    before.record(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    before.save(tmp_path / "rows.npz")
    same = scores()
    assert same.load(tmp_path / "rows.npz") == 4 and np.array_equal(same.score, before.score)
    moved = scores(first=12)  # rows 12 and 13 were places 2 and 3
    assert moved.load(tmp_path / "rows.npz") == 2
    assert moved.score[:2].tolist() == [3.0, 4.0] and np.isnan(moved.score[2:]).all()


def test_what_cannot_be_used_says_why(tmp_path):
    with refused(DataError, "0 rows"):
        scores(size=0)
    with refused(DataError, "rows 3 to 4"):
        scores().record(torch.tensor([3, 4]), torch.ones(2))
    scores(first=100).save(tmp_path / "elsewhere.npz")
    for file in ("missing.npz", "elsewhere.npz"):
        with refused(CheckpointError, file):
            scores().load(tmp_path / file)


def test_a_damaged_header_that_hides_rows_is_refused(tmp_path):
    """The wrong twin leaves checksums to numpy, which compares them at the end of an array and stops before that."""
    path = tmp_path / "rows.npz"
    scores(size=9000).save(path)
    path.write_bytes(path.read_bytes().replace(b"(9000,)", b"(1000,)"))
    with refused(CheckpointError, path, "checksum"):
        scores(size=9000).load(path)
    with np.load(path) as file:
        assert len(file["score"]) == 1000, "the twin"


def test_the_mean_loss_is_over_trained_tokens():
    logp = torch.tensor([[-1.0, -3.0, -100.0], [-2.0, math.nan, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert mean_loss(logp, mask).tolist() == [2.0, 2.0]
