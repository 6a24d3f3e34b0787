"""Draws among the rows of a dataset, in supervised training and in training on preferences."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dppo.methods import RowMethod
from dppo.pruning import RecordedScores
from dppo.pruning.designs import relative_added_variance
from dppo.pruning.recorded import read_arrays, write_arrays
from dppo.rng import Purpose, step_streams
from dppo.step.metrics import kept_metrics
from dppo.types import Candidates, Draw

SCORES_FILE, EPOCH_FILE = "dppo_rows.npz", "dppo_epoch.npz"


class RowSource:
    """Draws among the rows of each step by their recorded ``scores``."""

    def __init__(self, scores: RecordedScores, method: RowMethod, *, seed: int) -> None:
        self.scores, self.method, self.seed = scores, method, seed
        self._epoch: tuple[int, Draw] | None = None

    def draw(self, row_N: Tensor, *, step: int, epoch: int = 0, done: float = 0.0) -> Draw:
        """The draw among rows (N,) of the dataset, those of a step on all ranks; equal on every rank.

        Its key is ``step``, or ``epoch`` for one draw per epoch. ``done`` is the share of training done, in [0, 1].
        """
        method, candidates = self.method.at(done), self.scores.candidates(row_N)
        # A rate of 0 holds at once: the draw made before the schedule ended would hold until the end of the epoch.
        if not (method.per_epoch and method.rows.rate):
            return method.rows.draw(candidates, step_streams(self.seed, step)(Purpose.ROW_DRAW))
        if self._epoch is None or self._epoch[0] != epoch:
            everything = self.scores.candidates(torch.arange(len(self.scores)))
            self._epoch = epoch, method.rows.draw(everything, step_streams(self.seed, epoch)(Purpose.ROW_DRAW))
        return self._epoch[1].take(row_N)

    def save(self, folder: Path) -> None:
        """Write the scores, and the draw of the epoch if there is one, into ``folder``."""
        self.scores.save(folder / SCORES_FILE)
        if self._epoch is not None:
            epoch, draw = self._epoch
            arrays = {"epoch": np.int64(epoch), "prob": draw.prob_N.numpy(), "weight": draw.weight_N.numpy()}
            write_arrays(folder / EPOCH_FILE, **arrays)

    def load(self, folder: Path) -> int:
        """Read what ``save`` wrote; return the number of rows of this dataset that were in the saved one."""
        known = self.scores.load(folder / SCORES_FILE)
        self._epoch, path = None, folder / EPOCH_FILE
        if self.method.per_epoch and path.exists():
            saved = read_arrays(path, "draw of the epoch", ("epoch", "prob", "weight"))
            if len(saved["prob"]) == len(self.scores):  # else the dataset has other rows, and the epoch is drawn again
                prob_N, weight_N = torch.from_numpy(saved["prob"]), torch.from_numpy(saved["weight"])
                self._epoch = int(saved["epoch"]), Draw(keep_N=weight_N > 0, prob_N=prob_N, weight_N=weight_N)
        return known


def row_metrics(candidates: Candidates, draw: Draw) -> dict[str, float]:
    """Metrics of a draw among the rows of a step, by their names in docs/metrics.md."""
    seen_N, found = candidates.seen_P, kept_metrics(draw.weight_N, candidates.tokens_P)
    found["prune/rows_with_score"] = seen_N.double().mean().item()
    if bool(seen_N.any()):
        found["prune/added_variance"] = relative_added_variance(draw.prob_N[seen_N], candidates.signal_P[seen_N])
    return found
