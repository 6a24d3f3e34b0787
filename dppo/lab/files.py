"""Records as lines of JSON, written beside a run that may be stopped at any moment and read back as far as they go.

Lines are appended without flushing the disk, since a record is not worth the wait: a power cut may take the last ones.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dppo.errors import FileError
from dppo.files import Default, encoded, replacing


def append_lines(path: str | Path, records: Iterable[Mapping[str, Any]], *, default: Default | None = None) -> None:
    """Add one line of JSON per record to a file, made where it is missing; ``default`` is as for ``encoded``.

    A line that a full disk or a stop cuts off is the last one, which readers leave out.
    """
    lines = "".join(encoded(record, default=default) + "\n" for record in records)
    if lines:
        with open(path, "a", encoding="ascii", newline="\n") as file:
            file.write(lines)


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a file in order, without a last line that a stop cut off. No file, no records.

    Raises:
        FileError: another line is no object with a ``step``, a finite number.
    """
    lines = Path(path).read_bytes().splitlines() if Path(path).is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode("utf-8", errors="replace"))
            if not isinstance(record, dict) or not math.isfinite(record.get("step", math.nan)):
                raise ValueError("it is no object with a step")
        except (TypeError, ValueError) as error:
            if number == len(lines):
                return
            raise FileError(
                f"{path}: line {number} is damaged ({error}). Remove it, or train the run again."
            ) from error
        yield record


def keep_lines(path: str | Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Remove every record that ``keep`` refuses. ``OSError``, ``FileError``: the file is as it was."""
    if Path(path).is_file():
        with replacing(path) as file:
            for record in read_lines(path):
                if keep(record):
                    file.write(encoded(record).encode("ascii") + b"\n")
