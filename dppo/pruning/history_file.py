"""Files of arrays about prompts or rows, and rows found again by their identities."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dppo.errors import CheckpointError, DataError, ShapeError
from dppo.files import replacing


def dataset_rows(rows: Tensor | np.ndarray, size: int) -> np.ndarray:
    """(P,) int64 indices into a dataset of ``size`` rows, checked."""
    row = np.asarray(rows, np.int64)
    if row.ndim != 1:
        raise ShapeError(f"rows have shape {row.shape}, expected (P,)")
    if len(row) and not 0 <= row.min() <= row.max() < size:
        raise DataError(f"rows {row.min()} to {row.max()} are not all within the dataset's 0 to {size - 1}")
    return row


def matches(wanted: np.ndarray, saved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of ``wanted`` that are in ``saved``, and their indices there; the first of equal identities."""
    if np.array_equal(wanted, saved):
        return np.arange(len(wanted)), np.arange(len(saved))
    order = np.argsort(saved, kind="stable")
    place = np.searchsorted(saved[order], wanted)
    found = place < len(saved)
    found[found] = saved[order[place[found]]] == wanted[found]
    return np.flatnonzero(found), order[place[found]]


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
