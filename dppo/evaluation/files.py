"""Files that are whole at every moment: one line per record, appended; and small JSON files, replaced at once."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dppo import files
from dppo.errors import EvaluationError, FileError

_BLOCK = 1 << 16


class LineFile:
    """A JSON Lines file that is only ever appended to, by one process at a time.

    Half a line at its end, from a process that was killed, is cut off on opening. Whatever stops a write, only whole
    lines stay.

    Args:
        path: made where it does not exist.

    Raises:
        EvaluationError: it cannot be opened, or another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path, "nothing was written"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self.cut = self._cut_half_line()
            """Bytes of half a line that were cut off."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LineFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and let others have it."""
        os.close(self._fd)

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add one line per record.

        Raises:
            EvaluationError: there is no room, or the disk fails. The lines that were written whole stay.
        """
        data = "".join(json.dumps(row) + "\n" for row in rows).encode("ascii")
        start, written = os.fstat(self._fd).st_size, 0
        with _explained(self.path, "what was written before is whole: make room and give the same command to go on"):
            try:
                while written < len(data):
                    written += os.write(self._fd, data[written:])
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._fd, start + data.rfind(b"\n", 0, written) + 1)
                raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return  # not a POSIX system: two evaluations in one folder go unnoticed there
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EvaluationError(f"{self.path} is being written by another evaluation: --output ANOTHER") from error

    def _cut_half_line(self) -> int:
        size = end = os.fstat(self._fd).st_size
        while end > 0:
            start = max(0, end - _BLOCK)
            place = os.pread(self._fd, end - start, start).rfind(b"\n")
            if place >= 0:
                end = start + place + 1
                break
            end = start
        if end < size:
            with _explained(self.path, "half a line at its end could not be cut off"):
                os.ftruncate(self._fd, end)
        return size - end


def make_folder(folder: Path) -> Path:
    """The folder, made where it does not exist.

    Raises:
        EvaluationError: it cannot be made.
    """
    with _explained(folder, "no folder can be made there: --output ANOTHER"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON Lines file, one at a time.

    Raises:
        EvaluationError: a line that is not a record, by number.
    """
    try:
        yield from files.read_lines(path, advice="Delete that line: its sample will be drawn again")
    except FileError as error:
        raise EvaluationError(str(error)) from error


def read_json(path: Path, advice: str) -> Any:
    """What a JSON file holds.

    Args:
        path: the file.
        advice: what to do where it cannot be read.

    Raises:
        EvaluationError: it is not there, or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read ({error}): {advice}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is either the old one or the new one, never half of it.

    Raises:
        EvaluationError: there is no room, or the disk fails.
    """
    with _explained(path, "the file was left as it was: make room and give the same command again"):
        files.write_json(path, value)


@contextmanager
def _explained(path: Path, state: str) -> Iterator[None]:
    """Turns a failing disk into an error that says what is left."""
    try:
        yield
    except OSError as error:
        raise EvaluationError(f"{path}: {error.strerror or error}; {state}") from error
