"""Rows from where they are: files and folders on this machine, and datasets on the hub."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from dppo.errors import ConfigError, DataError
from dppo.problems.catalogue import Benchmark, known_set

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
SPLIT_NAMES = ("train", "test", "validation", "valid", "val", "dev", "eval")


def is_local(source: str) -> bool:
    """Whether a source means a file or folder on this machine: it exists, or is written as a path."""
    if Path(source).expanduser().exists():
        return known_set(source) is None  # a folder that happens to be called gsm8k must be written ./gsm8k
    return source.endswith(SUFFIXES) or source.startswith(("/", "./", "../", "~"))


def read_rows(record: Benchmark, split: str, advice: str) -> datasets.Dataset:
    """The rows of a set: of its local file or folder where it has one, else of a split on the hub.

    Args:
        record: with ``path`` or ``hub``.
        split: on the hub, or of a folder.
        advice: what works without a network, for the message.

    Raises:
        ConfigError: a record with neither.
        DataError: they cannot be had from here.
    """
    if record.path is not None:
        return read_local(record.path, split)
    if record.hub is None:
        raise ConfigError(f"{record.name} has no file: Benchmark(name={record.name!r}, path='problems.jsonl')")
    name, _, config = record.hub.partition(":")
    try:
        found = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated types, and every one means the same here
        raise DataError(
            f"dataset {name!r} (config {config or None!r}, split {split!r}) could not be loaded from the hub: "
            f"{type(error).__name__}: {error}. Its splits are {', '.join(record.splits)}. {advice}"
        ) from error
    if not isinstance(found, datasets.Dataset):
        raise DataError(
            f"dataset {name!r}, split {split!r}, is a {type(found).__name__}; name one split: split='train'"
        )
    return found


def read_local(path: str, split: str) -> datasets.Dataset:
    """The rows of a file, or of the files of a folder that belong to a split, as one dataset.

    Rows may have different fields: what a row lacks is None. A column that mixes text with numbers becomes text.

    Raises:
        DataError: nothing there, not readable (with file and line), or columns that cannot be one type.
    """
    place = Path(path).expanduser()
    rows = [row for file in _files(place, split) for row in _rows(file)]
    if not rows:
        raise DataError(f"{place} holds no rows")
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return datasets.Dataset.from_dict({name: _one_type(name, values, place) for name, values in columns.items()})


def _files(place: Path, split: str) -> list[Path]:
    """The files to read: of a folder, those named after the split, or all where no file is named after any split."""
    if not place.exists():
        raise DataError(f"no such file or folder: {place} (looked in {Path.cwd()})")
    if not place.is_dir():
        if not place.name.endswith(SUFFIXES):
            raise DataError(f"{place} is not one of {', '.join(SUFFIXES)}: rename it, or convert it to JSON Lines")
        return [place]
    own = (place / split).is_dir()
    files = sorted(file for file in (place / split if own else place).iterdir() if file.name.endswith(SUFFIXES))
    named = files if own else [file for file in files if split in _words(file)]
    if named:
        return named
    if not files or any(set(SPLIT_NAMES) & _words(file) for file in files):
        present = ", ".join(file.name for file in files[:10]) or "no data file"
        raise DataError(
            f"folder {place} has no file for split {split!r}; it has {present}. "
            f"Name one file, or put {split!r} in a file's name, as in problems-{split}.jsonl"
        )
    return files


def _words(file: Path) -> set[str]:
    """The words of a file's name: ``gsm8k_train.jsonl.gz`` has gsm8k and train."""
    stem = file.name.split(".")[0].lower()
    return set("".join(c if c.isalnum() else " " for c in stem).split())


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of one file, in order."""
    try:
        if file.suffix == ".parquet":
            yield from pq.read_table(file).to_pylist()
            return
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if ".json" in (file.suffix, Path(file.stem).suffix) and text.lstrip().startswith("["):
        numbered = enumerate(_parsed(text, f"{file}"), 1)
    else:
        lines = enumerate(text.split("\n"), 1)  # not splitlines: a string may hold U+2028
        numbered = ((number, _parsed(line, f"{file}, line {number}")) for number, line in lines if line.strip())
    for number, row in numbered:
        if not isinstance(row, dict):
            raise DataError(
                f"{file}, row {number} is {type(row).__name__}, expected an object with fields, "
                'such as {"problem": "1 + 1 = ?", "answer": "2"}'
            )
        yield row


def _parsed(text: str, where: str) -> Any:
    """One JSON value."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error


def _one_type(name: str, values: list[Any], place: Path) -> list[Any]:
    """The values of a column, as text where text and numbers are mixed."""
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        if all(value is None or isinstance(value, (str, int, float)) for value in values):
            return [value if value is None or isinstance(value, str) else str(value) for value in values]
        raise DataError(
            f"{place}: column {name!r} has values of different types ({error}); make them one type"
        ) from error
    return values
