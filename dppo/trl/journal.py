"""Files of a run that grow line by line: whole lines only, valid JSON only, and never a reason for a run to stop."""

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Appends JSON lines to files in one folder until a write fails; then it warns once and appends no more.

    Args:
        folder: made when something is first written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stopped = False
        """Whether a write has failed."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per record to the file ``name``. A line that does not fit on the disk is taken back.

        Args:
            name: of the file within the folder.
            records: JSON values; numbers that are not finite become null, other things text.
        """
        lines = "".join(encoded(record) + "\n" for record in records).encode("ascii")
        if self.stopped or not lines:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / name, "ab", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                try:
                    _write_all(file, lines)
                except OSError:
                    _take_back(file, start)
                    raise
        except OSError as error:
            self._stop(name, error)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Put a whole JSON file in place of ``name``, at once: a reader never sees half of it.

        Args:
            name: of the file within the folder.
            value: JSON values, as for ``append``.
        """
        path = self.folder / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(encoded(value, indent=1) + "\n", encoding="ascii")
            temporary.replace(path)
        except OSError as error:
            self._stop(name, error)

    def cut(self, name: str, step: int) -> None:
        """Take away every line of a later step than ``step``, and every line that is cut off or is not a record.

        Args:
            name: of the file within the folder; nothing happens where there is none.
            step: the last to keep; below 0 nothing is kept.
        """
        path = self.folder / name
        try:
            if not path.exists():
                return
            temporary = path.with_name(f".{name}.{os.getpid()}")
            with path.open("rb") as old, temporary.open("wb") as new:
                new.writelines(line for line in old if _kept(line, step))
            temporary.replace(path)
        except OSError as error:
            self._stop(name, error)

    def _stop(self, name: str, error: OSError) -> None:
        if not self.stopped:
            self.stopped = True
            warnings.warn(
                f"cannot write {self.folder / name}: {error}. The record of this run stops here; training goes on.",
                stacklevel=3,
            )


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, in order; lines that are cut off or are no record are passed over.

    Args:
        path: nothing comes where there is no such file.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            record = _record(line)
            if record is not None:
                yield record


def encoded(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON in ASCII: any text, lone surrogates and line breaks included, stays within its line.

    Args:
        value: numbers that are not finite become null; what JSON has no word for is written as text.
        indent: spaces per level; None for a single line.
    """
    return json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, default=str, indent=indent)


def _finite(value: Any) -> Any:
    """The same with null in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _write_all(file: Any, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def _take_back(file: Any, size: int) -> None:
    file.truncate(size)


def _kept(line: bytes, step: int) -> bool:
    record = _record(line)
    at = None if record is None else record.get("step")
    return isinstance(at, int) and at <= step


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line, or None."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
