"""Seconds of a run that count: those of training."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Counts seconds from ``start`` to ``stop``, less those within ``paused``; begins with ``seconds``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._since = 0.0
        self._running, self._pauses = False, 0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds + (time.perf_counter() - self._since if self._counting else 0.0)

    @property
    def _counting(self) -> bool:
        return self._running and not self._pauses

    def start(self, seconds: float) -> None:
        """Go on from ``seconds``."""
        self._seconds, self._since, self._running = seconds, time.perf_counter(), True

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
            self._since = time.perf_counter()
