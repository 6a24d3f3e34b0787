"""Writes the files of a run, without ever stopping it, and its clock."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from answer_judge.files import append_lines, keep_lines, write_json
from dppo.trl.metrics import wall


class Journal:
    """Writes JSON to files in a folder, until a write fails: then it warns once and appends no more.

    Numbers that are not finite become null, and values that JSON does not have become text.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stopped = False
        """Whether a write has failed."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per record to the file ``name``. A line that does not fit on the disk is removed again."""
        if not self.stopped:
            self._try(name, lambda path: append_lines(path, records, default=str))

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace the file ``name`` in one step. It is tried every time, since it says how a run ended."""
        self._try(name, lambda path: write_json(path, value, default=str))

    def cut(self, name: str, step: int) -> None:
        """Remove every line of a later step than ``step``, and every damaged line; below 0 all of them."""

        def is_kept(record: Mapping[str, Any]) -> bool:
            at = record.get("step")
            return isinstance(at, int) and at <= step

        self._try(name, lambda path: keep_lines(path, is_kept))

    def _try(self, name: str, write: Callable[[Path], None]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / name)
        except OSError as error:
            if not self.stopped:
                self.stopped = True
                warnings.warn(
                    f"cannot write {self.folder / name}: {error}. The record of this run stops here; training goes on.",
                    stacklevel=3,
                )


class Stopwatch:
    """Counts training seconds on the clock ``now``: from ``start`` to ``stop``, without those in ``paused``."""

    def __init__(self, now: Callable[[], float] = wall) -> None:
        self._now = now
        self._seconds = self._since = 0.0
        self._running, self._pauses = False, 0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (self._now() - self._since if self._counting else 0.0)

    @property
    def _counting(self) -> bool:
        return self._running and not self._pauses

    def start(self, seconds: float) -> None:
        """Go on from ``seconds``."""
        self._seconds, self._since, self._running = seconds, self._now(), True

    def stop(self) -> None:
        """Count no more."""
        self._seconds, self._running = self.seconds, False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing within a ``with`` block; pauses may be nested."""
        self._seconds, self._pauses = self.seconds, self._pauses + 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._since = self._now()
