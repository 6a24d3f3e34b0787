"""Scores of reasoning-gym in worker processes: a scorer that hangs on a model's text costs a completion, and no run."""

import atexit
import multiprocessing
import warnings
from collections.abc import Sequence
from typing import Any

from dppo.lab.gym import COLUMN, reasoning_gym_score


def _ready() -> None:
    """Import reasoning-gym, which takes seconds, before a worker takes its first completion."""
    import reasoning_gym  # noqa: F401  # pyright: ignore[reportUnusedImport]


class GymScorer:
    """Reward function of TRL for problems of reasoning-gym: the task's own score, None where it was not known in time.

    Args:
        workers: processes, >= 1.
        limit_seconds: wall-clock seconds for one completion, > 0.
    """

    __name__ = "reasoning_gym_score"
    required_columns = (COLUMN,)

    def __init__(self, workers: int = 2, limit_seconds: float = 5.0) -> None:
        self.workers, self.limit_seconds = workers, limit_seconds
        self._pool: Any = None
        atexit.register(self.close)

    def close(self) -> None:
        """End the workers; the next call starts new ones."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        found = self.scores(texts, columns[COLUMN])
        if columns.get("log_metric") and found:
            outcomes = {"right": found.count(1.0), "timeout": found.count(None)}
            outcomes["wrong"] = len(found) - sum(outcomes.values())
            for outcome, count in outcomes.items():
                columns["log_metric"](f"check/{outcome}", count / len(found))
        return found

    def scores(self, texts: Sequence[str], rows: Sequence[str]) -> list[float | None]:
        """The score of each text, in [0, 1] or None, for the problem of its row's ``COLUMN``."""
        found: list[float | None] = []
        while len(found) < len(texts):
            if self._pool is None:
                # Spawned, not forked: a fork would copy torch's threads in whatever state they are.
                self._pool = multiprocessing.get_context("spawn").Pool(self.workers, _ready)
                self._pool.apply(_ready)
            left = list(zip(texts, rows, strict=True))[len(found) :]
            asked = [self._pool.apply_async(reasoning_gym_score, (text, {COLUMN: row})) for text, row in left]
            try:
                for each in asked:
                    found.append(each.get(self.limit_seconds))
            except multiprocessing.TimeoutError:
                found.append(None)
                self.close()
                warnings.warn(
                    f"reasoning_gym did not score {texts[len(found) - 1][:120]!r} within {self.limit_seconds:g} "
                    "seconds: that completion has no reward",
                    stacklevel=2,
                )
        return found
