"""Files replaced at once, or grown by whole lines of JSON: a killed process leaves no half of either."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from answer_judge.errors import FileError


@contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """A file of ASCII text that replaces ``path`` when the block ends without an error, else ``path`` is as it was."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # in the same folder, or the rename would be a copy
    try:
        with part.open("w", encoding="ascii") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Replace a JSON file by ``value``; see ``replacing``."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def append_lines(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Add one line of JSON per record to a file; ``sole_writer`` cuts half a line off that a full disk leaves."""
    with open(path, "a", encoding="ascii") as file:
        file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)


@contextmanager
def current_folder_first() -> Iterator[None]:
    """A context that imports from the current folder first, as ``python -m`` does and installed commands do not."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def sole_writer(path: str | Path, *, advice: str) -> Iterator[None]:
    """Meanwhile no other process can be the sole writer of a file of JSON lines, made with its folder where needed.

    Half a line at its end, of a process that was killed or a full disk, is cut off first. ``FileError``: it cannot be
    written, or another process is writing it; ``advice`` is the end of the message.
    """
    path = Path(path)
    with explaining(path, advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b", buffering=0)
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # not a POSIX system: two writers of one file go unnoticed there
        except OSError as error:
            raise FileError(f"{path} is being written by another process; {advice}") from error
        with explaining(path, advice), path.open("rb") as lines:
            file.truncate(sum(len(line) for line in lines if line.endswith(b"\n")))
        yield


@contextmanager
def explaining(path: str | Path, state: str) -> Iterator[None]:
    """Turns an ``OSError`` into a ``FileError`` about ``path`` that ends with ``state``: what is left, what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}; {state}") from error


def read_json(path: str | Path, *, advice: str) -> dict[str, Any]:
    """The object in a JSON file. ``FileError``: it cannot be read, or holds none; ``advice`` ends the message."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    return value


def read_lines(path: str | Path, *, advice: str = "") -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines. ``FileError``: one is damaged or the file missing; ``advice`` ends it."""
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error}). {advice}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode("utf-8"))
                if not isinstance(record, dict):
                    raise ValueError("it is not an object")
            except ValueError as error:
                raise FileError(f"{path}, line {number} is damaged ({error}). {advice}") from error
            yield record
