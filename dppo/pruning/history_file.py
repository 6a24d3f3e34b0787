"""Files of arrays about prompts or rows, and rows found again by their identities."""

import zipfile
import zlib
from collections.abc import Iterable, Mapping
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
    """The arrays of those ``names`` in a saved npz. Every byte is checked, and nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Before numpy reads: it trusts the header of an array, and may stop before the checksum is compared.
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} fails its checksum")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(
            f"the {what} at {path} is missing or damaged ({error}). Resume from an older checkpoint."
        ) from error


def read_history(
    path: Path, version: int, prompt_fields: Mapping[str, type[np.generic]], totals: int
) -> dict[str, np.ndarray]:
    """The arrays of a saved history, of the expected types and shapes."""
    others = {"identities": np.uint64, "totals": np.float64, "format": np.int64}
    expected = {**prompt_fields, **others, "reward_moments": np.float32, "reward_totals": np.float64}
    saved = read_arrays(path, "history", expected)
    size = saved["identities"].shape if "identities" in saved else ()
    functions = saved["reward_totals"].shape[-1:] if "reward_totals" in saved else ()
    shapes = dict.fromkeys((*prompt_fields, "identities"), size) | {"totals": (totals,), "format": ()}
    shapes |= {"reward_moments": (3, *size, *functions), "reward_totals": (3, *functions)}
    found = {name: (array.dtype, array.shape) for name, array in saved.items()}
    wrong = [name for name in expected if found.get(name) != (expected[name], shapes[name])]
    if wrong or saved["format"] != version:
        raise CheckpointError(
            f"the history at {path} is damaged or not of format {version} (wrong: {', '.join(wrong or ['format'])}). "
            "Resume from an older checkpoint, or with the version of this library that wrote it."
        )
    return saved
