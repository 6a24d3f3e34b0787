"""Files of arrays about rows, and the score of each row at its last visit: training on rows draws them by it."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.errors import CheckpointError, DataError, ShapeError
from dppo.files import replacing
from dppo.pruning.scores import at_least_float32
from dppo.types import Candidates


def dataset_rows(rows: Tensor | np.ndarray, size: int) -> np.ndarray:
    """(P,) int64 indices into a dataset of ``size`` rows, checked."""
    row = np.asarray(rows, np.int64)
    if row.ndim != 1:
        raise ShapeError(f"rows have shape {row.shape}, expected (P,)")
    if len(row) and not 0 <= row.min() <= row.max() < size:
        raise DataError(f"rows {row.min()} to {row.max()} are not all within the dataset's 0 to {size - 1}")
    return row


def matches(wanted: np.ndarray, saved: np.ndarray, file: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices of ``wanted`` in ``saved``, and their first there; without any, a ``CheckpointError`` about ``file``."""
    if np.array_equal(wanted, saved):
        return np.arange(len(wanted)), np.arange(len(saved))
    known, first = np.unique(saved, return_index=True)
    found = np.isin(wanted, known)
    if len(wanted) and not found.any():
        others = f"{file} are of {len(saved)} rows, none of the {len(wanted)} of this dataset"
        raise CheckpointError(
            f"{others}. Give the dataset that they were recorded on, or start a new run without the file."
        )
    return np.flatnonzero(found), first[np.searchsorted(known, wanted[found])]


def write_arrays(path: str | Path, **arrays: Any) -> None:
    """Write arrays as npz, without pickle; the file appears complete or not at all."""
    with replacing(path) as file:
        np.savez(file, **arrays)


def read_arrays(path: Path, what: str, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of those ``names`` in a saved npz; ``CheckpointError`` if one is missing or a byte is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Before numpy reads: it trusts the header of an array, and may stop before the checksum is compared.
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} fails its checksum")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        which = f"the {what} at {path} is missing, damaged or of another version"
        raise CheckpointError(f"{which} ({error}). Resume from an older checkpoint.") from error


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
        """Replace all scores by those of a file; return the number of rows of this dataset in it, at least 1."""
        saved = read_arrays(Path(path), "recorded scores", ("identities", "score"))
        target, source = matches(self.identities, saved["identities"], f"the scores in {path}")
        self.score[:] = np.nan
        self.score[target] = saved["score"][source]
        return len(target)


def mean_loss(logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(B,) mean negative log-likelihood of trained tokens, in nats: InfoBatch's loss, arXiv:2303.04947, section 3.1."""
    loss_BT = torch.where(mask_BT.bool(), -at_least_float32(logp_BT), 0.0)
    return loss_BT.sum(1) / mask_BT.bool().sum(1).clamp(min=1)
