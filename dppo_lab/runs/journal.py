"""The files of a run in progress, which are never a reason for the run to stop, and its clock."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from answer_judge.files import append_lines, keep_lines, write_json
from dppo.trl.metrics import wall


class Journal:
    """Writes to files in one folder, made when needed, until a write fails; then it warns once and appends no more.

    Values are JSON's; numbers that are not finite become null, other things text.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stopped = False
        """Whether a write has failed."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per record to the file ``name``. Lines that do not fit on the disk are taken back."""
        if not self.stopped:
            self._try(name, lambda path: append_lines(path, records, default=str))

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Put a whole JSON file in place of ``name``, at once; tried anew each time, since it says how a run ended."""
        self._try(name, lambda path: write_json(path, value, default=str))

    def cut(self, name: str, step: int) -> None:
        """Take away every line of a later step than ``step``, and every line that is cut off or is not a record.

        Below 0 nothing is kept.
        """
        self._try(name, lambda path: keep_lines(path, lambda record: _step(record) <= step))

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


def _step(record: Mapping[str, Any]) -> float:
    """The step of a record; one that has none belongs to no step, so it comes after all."""
    step = record.get("step")
    return step if isinstance(step, int) else float("inf")


class Stopwatch:
    """Counts the seconds of a run that are training: from ``start`` to ``stop``, less those within ``paused``.

    Args:
        now: the clock, in seconds.
    """

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
        """Count nothing within a ``with`` block; pauses may lie within each other."""
        self._seconds, self._pauses = self.seconds, self._pauses + 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._since = self._now()
