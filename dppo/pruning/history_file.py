"""Arrays of prompts and their files: written whole, every byte checked, and prompts found again by what they hold."""

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
    """(P,) int64 positions in a dataset of ``size`` rows."""
    row = np.asarray(rows, np.int64)
    if row.ndim != 1:
        raise ShapeError(f"rows have shape {row.shape}, expected (P,)")
    if len(row) and not 0 <= row.min() <= row.max() < size:
        raise DataError(f"rows {row.min()} to {row.max()} are not all within the dataset's 0 to {size - 1}")
    return row


def matches(wanted: np.ndarray, saved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``wanted`` that are in ``saved``, and where; of equal identities in ``saved`` the first."""
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
    """Those arrays of a saved npz that it has, every byte checked; nothing is unpickled."""
    if not path.is_file():
        raise CheckpointError(f"there is no {what} at {path}. Resume from a checkpoint that this library wrote.")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise ValueError(f"{damaged} fails its checksum")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"the {what} at {path} is damaged ({error}). Resume from an older checkpoint.") from error


def read_history(
    path: Path, version: int, prompt_fields: Mapping[str, type[np.generic]], totals: int
) -> dict[str, np.ndarray]:
    """The arrays of a saved history, all checked for type and length."""
    expected = {
        **prompt_fields,
        **{"identities": np.uint64, "totals": np.float64, "format": np.int64},
        **{"reward_moments": np.float32, "reward_totals": np.float64},
    }
    saved = read_arrays(path, "history", expected)
    if saved.get("format", version) != version:
        raise CheckpointError(
            f"the history at {path} is not of format {version}, but of {saved['format']}. Resume with the version of "
            "this library that wrote it."
        )
    if missing := sorted(expected.keys() - saved.keys()):
        raise CheckpointError(f"the history at {path} is damaged: it lacks {missing}. Resume from an older checkpoint.")
    size, functions = saved["identities"].shape, saved["reward_totals"].shape[-1:]
    sizes = dict.fromkeys(prompt_fields, size) | {"totals": (totals,), "format": ()}
    sizes |= {"reward_moments": (3, *size, *functions), "reward_totals": (3, *functions)}
    wrong = [name for name, dtype in expected.items() if saved[name].dtype != dtype]
    wrong += [name for name, shape in sizes.items() if saved[name].shape != shape]
    if wrong:
        raise CheckpointError(
            f"the history at {path} is not of format {version} (wrong: {', '.join(wrong)}). "
            "Resume with the version of this library that wrote it."
        )
    return saved
