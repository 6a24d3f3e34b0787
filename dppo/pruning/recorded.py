"""The score of each row of a dataset at its last visit: supervised and preference training draw rows by it."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dppo.errors import CheckpointError, DataError, ShapeError
from dppo.pruning.history_file import dataset_rows, matches, read_arrays, write_arrays
from dppo.pruning.scores import at_least_float32
from dppo.types import Candidates


class RecordedScores:
    """The score of each row at its last visit. Rows without a score are always kept.

    Args:
        identities: (size,) uint64, a hash of each row's content. Saved scores find their rows by it.
        tokens: (size,) tokens of each row, > 0: the cost of keeping it.
    """

    def __init__(self, identities: np.ndarray, tokens: np.ndarray) -> None:
        if not len(identities):
            raise DataError("the dataset has 0 rows, and at least 1 is needed. Give it rows to train on.")
        if identities.dtype != np.uint64 or identities.ndim != 1 or tokens.shape != identities.shape:
            shapes = f"identities are {identities.dtype} {identities.shape} and tokens {tokens.shape}"
            raise ShapeError(f"{shapes}, expected uint64 (size,) and (size,).")
        self.identities, self.tokens = identities, tokens.astype(np.float64)
        self.score = np.full(len(identities), np.nan, np.float32)
        """(size,) NaN for a row without a score."""

    def __len__(self) -> int:
        return len(self.identities)

    @property
    def seen(self) -> int:
        """Rows that have a score."""
        return int(np.count_nonzero(~np.isnan(self.score)))

    def candidates(self, row_P: Tensor) -> Candidates:
        """Rows as candidates of a draw."""
        row = dataset_rows(row_P, len(self))
        score = torch.from_numpy(self.score[row].astype(np.float64))
        return Candidates(
            row_P=row_P,
            signal_P=score.nan_to_num(0.0),
            tokens_P=torch.from_numpy(self.tokens[row]),
            seen_P=~score.isnan(),
        )

    def record(self, row_P: Tensor, score_P: Tensor) -> None:
        """Replace the scores (P,) >= 0, in any unit, of visited rows. One that is not finite changes nothing."""
        row, score = dataset_rows(row_P, len(self)), score_P.double().numpy()
        good = np.isfinite(score) & (score >= 0)
        self.score[row[good]] = score[good]

    def save(self, path: str | Path) -> None:
        """Write scores and identities to ``path`` as npz, without pickle. The file appears complete or not at all."""
        write_arrays(path, identities=self.identities, score=self.score)

    def load(self, path: str | Path) -> int:
        """Replace all scores by those of a file; return the number of rows of this dataset in it.

        Raises:
            CheckpointError: the file is missing or damaged, or has no row of this dataset.
        """
        saved = read_arrays(Path(path), "recorded scores", ("identities", "score"))
        target, source = matches(self.identities, saved["identities"])
        if not len(target):
            others = (
                f"{path} has the scores of {len(saved['identities'])} rows, none of the {len(self)} of this dataset"
            )
            raise CheckpointError(f"{others}. Give the dataset that they were recorded on, or start without them.")
        self.score[:] = np.nan
        self.score[target] = saved["score"][source]
        return len(target)


def mean_loss(logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(B,) mean negative log-likelihood of each row's trained tokens, in nats: InfoBatch's loss of a sample.

    Source: InfoBatch, arXiv:2303.04947, section 3.1.
    """
    loss_BT = torch.where(mask_BT.bool(), -at_least_float32(logp_BT), 0.0)
    return loss_BT.sum(1) / mask_BT.bool().sum(1).clamp(min=1)
