"""Records as lines of JSON, written beside a run that may be stopped at any moment and read back as far as they go.

Lines are appended without flushing the disk, since a record is not worth the wait: a power cut may take the last ones.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dppo.files import Default, encoded, replacing

Damage = tuple[int, str]
"""Number of a line, from 1, and what is wrong with it."""


def append_lines(path: str | Path, records: Iterable[Mapping[str, Any]], *, default: Default | None = None) -> None:
    """Add one line of JSON per record to a file, made where it is missing; ``default`` is as for ``encoded``.

    A line that a full disk or a stop cuts off is the last one, which readers leave out.
    """
    lines = "".join(encoded(record, default=default) + "\n" for record in records)
    if lines:
        with open(path, "a", encoding="ascii", newline="\n") as file:
            file.write(lines)


def read_lines(path: str | Path, damaged: list[Damage]) -> Iterator[dict[str, Any]]:
    """The records of a file in order; lines that are cut off or no record go to ``damaged``. No file, no records."""
    path = Path(path)
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8", errors="replace"))
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
            except ValueError as error:
                damaged.append((number, str(error)))
            else:
                yield record


def keep_lines(path: str | Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Remove every record that ``keep`` refuses, and every damaged line.

    Raises:
        OSError: there is no room, or the disk fails. The file is as it was.
    """
    if Path(path).is_file():
        with replacing(path) as file:
            for record in read_lines(path, []):
                if keep(record):
                    file.write(encoded(record).encode("ascii") + b"\n")
