"""Progress of a running command: bars on a terminal, elsewhere a plain line from time to time."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from dppo.errors import duration

EVERY = 30.0
"""Seconds between plain lines."""
RECENT = 3600.0
"""Seconds over which speed is measured; longer than any step takes, or there would be no speed."""
REWARDS = ("candidates/reward", "reward")
"""The live reward: over all candidates where some prompts were not rolled out."""
ACCURACIES = ("accuracy", "eval/average/pass@1")
KEPT = (
    ("prune/prompts_kept_share", "prompts"),
    ("prune/kept_share", "completions"),
    ("prune/token_kept_share", "their tokens"),
)
"""Shares kept; one of prompts or of tokens is shown where it is not all."""


def shown(figures: Mapping[str, float]) -> list[str]:
    """What a run's newest figures say that one can act on; the loss of a warm-up, and not where there are rewards."""
    words = [f"reward {figures[name]:.3f}" for name in REWARDS if name in figures][:1]
    words = words or [f"loss {figures[name]:.3f}" for name in ("loss",) if name in figures]
    words += [f"last accuracy {figures[name]:.3f}" for name in ACCURACIES if name in figures][:1]
    kept = [
        f"{figures[name]:.0%} of {what}"
        for name, what in KEPT
        if name in figures and (what == "completions" or figures[name] < 1)
    ]
    words += [f"kept {' and '.join(kept)}"] * bool(kept)
    if "saved/share" in figures:
        seconds, share = figures["saved/seconds"], figures["saved/share"]
        whole = f", {duration(seconds)} of {duration(seconds / share)}" if share > 0 else ""
        words.append(f"saved {share:.0%} of the run so far{whole}")
    elif kept:
        words.append("saved: not measured yet")
    return words


class Board:
    """A context manager that shows the progress of what is named: a bar for each, or lines from time to time.

    Args:
        console: bars are drawn if it is a terminal.
        first: False for other processes than the first, which show nothing.
        plain: lines on a terminal too.
        every: seconds between the lines of a name; its last line is always shown.
        now: the clock.
    """

    def __init__(
        self,
        console: Console,
        *,
        first: bool = True,
        plain: bool = False,
        every: float = EVERY,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        # rich takes a pipe for a terminal where the environment says so; a file must never get control characters.
        self._lines = plain or console.is_dumb_terminal or console.is_jupyter or not _terminal(console)
        self._console, self._first, self._every, self._now = console, first, every, now
        texts = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[count]}"))
        figures = TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True))
        self._progress = Progress(
            *texts, BarColumn(20), figures, console=console, disable=self._lines, get_time=now,
            speed_estimate_period=RECENT,
        )  # fmt: skip
        self._said: dict[str, float] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """Show that ``name`` has done so much of ``total``: optimizer steps, or a share of 1, with newest figures."""
        if not self._first:
            return
        known = next((task.id for task in self._progress.tasks if task.description == name), None)
        if known is None:
            known = self._progress.add_task(name, total=total, count="", figures="")
        self._progress.update(known, completed=done, total=total, visible=done < total)
        left = self._progress.tasks[known].time_remaining
        count = f"{done:.0%}" if total == 1 else f"{done:.0f}/{total:.0f} steps"
        texts = [*shown(figures or {}), *([f"{timedelta(seconds=round(left))} left"] if left else [])]
        if not self._lines:
            self._progress.start()
            self._progress.update(known, count=count, figures="  ".join(texts))
            return
        now = self._now()
        if now - self._said.setdefault(name, now) >= (self._every if done < total else 0):
            self._said[name] = now if done < total else math.inf
            print(f"{name}: {', '.join([count, *texts])}", file=self._console.file, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


@contextmanager
def open_status(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A context that shows a text and then those it is called with: in one place on a terminal, else as lines."""
    if _terminal(console):
        with console.status(text) as status:
            yield status.update
        return

    def line(text: str) -> None:
        print(text, file=console.file, flush=True)

    line(text)
    yield line


def _terminal(console: Console) -> bool:
    return console.is_terminal and console.file.isatty()
