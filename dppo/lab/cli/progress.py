"""Progress of a running command: bars on a terminal, elsewhere a plain line from time to time."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn
from rich.table import Column

from dppo.errors import duration

EVERY = 30.0
"""Seconds between plain lines."""
MOST_BARS = 8
"""Most bars on a screen; the one updated longest ago is hidden first."""
NARROW = 120
"""On a screen of fewer columns there is no bar, and figures that do not fit are cut off at their end."""
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
Clock = Callable[[], float]


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
    """A context manager that shows progress; this one shows nothing and is for every process but the first."""

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """Show that ``name`` has done so much of ``total``: optimizer steps, or a share of 1, with newest figures."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Lines(Board):
    """Plain lines for files, pipes and notebooks: for each name one in ``every`` seconds, and the last."""

    def __init__(self, console: Console, *, every: float = EVERY, now: Clock = time.monotonic) -> None:
        self._console, self._every, self._now = console, every, now
        self._measures = Progress(disable=True, get_time=now, speed_estimate_period=RECENT)
        self._said: dict[str, float] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        task = measured(self._measures, name, done, total)
        last = self._said.setdefault(name, self._now())
        if self._now() - last < (self._every if done < total else 0):
            return
        self._said[name] = self._now() if done < total else math.inf
        line = f"{name}: {', '.join(filter(None, [count(task), *shown(figures or {}), left(task)]))}"
        print(line, file=self._console.file, flush=True)


class Bars(Board):
    """On a terminal one bar per name, for the latest few. They begin with the first update."""

    def __init__(self, console: Console, *, now: Clock = time.monotonic) -> None:
        narrow = console.width < NARROW
        texts = [
            TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=Column(no_wrap=True, ratio=ratio))
            for name, ratio in (("count", None), ("figures", 1), ("left", None))
        ]
        columns = TextColumn("{task.description}", markup=False), *([] if narrow else [BarColumn(20)]), *texts
        self._bars = Progress(*columns, console=console, get_time=now, speed_estimate_period=RECENT, expand=narrow)
        self._latest: dict[str, TaskID] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        self._bars.start()
        task = measured(self._bars, name, done, total)
        self._latest.pop(name, None)
        self._latest[name] = task.id  # the latest last
        for index, known in enumerate(reversed(self._latest.values())):
            self._bars.update(known, visible=index < MOST_BARS)
        figures_shown = "  ".join(shown(figures or {}))
        self._bars.update(task.id, count=count(task), figures=figures_shown, left=left(task))

    def __exit__(self, *error: object) -> None:
        if self._latest:
            self._bars.stop()


def open_board(console: Console, *, first: bool = True, plain: bool = False) -> Board:
    """The board for this console: lines on a terminal too if ``plain``, nothing but on the ``first`` process."""
    if not first:
        return Board()
    terminal = console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter
    # rich takes a pipe for a terminal where the environment says so; a file must never get control characters.
    return Bars(console) if terminal and console.file.isatty() and not plain else Lines(console)


@contextmanager
def open_status(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A context that shows a text and then those it is called with: in one place on a terminal, else as lines."""
    if console.is_terminal and console.file.isatty():
        with console.status(text) as status:
            yield status.update
        return

    def line(text: str) -> None:
        print(text, file=console.file, flush=True)

    line(text)
    yield line


def measured(progress: Progress, name: str, done: float, total: float) -> Task:
    """The task of that name, made where there is none, with so much done; it measures its own speed."""
    known = next((task.id for task in progress.tasks if task.description == name), None)
    if known is None:
        known = progress.add_task(name, total=total, count="", figures="", left="")
    progress.update(known, completed=done, total=total)
    return progress.tasks[known]


def count(task: Task) -> str:
    """``12/60`` steps, or ``20%`` where the total is 1."""
    return f"{task.completed:.0%}" if task.total == 1 else f"{task.completed:.0f}/{task.total:.0f} steps"


def left(task: Task) -> str:
    """Time left at the latest speed; empty when done, and while unknown."""
    if not task.time_remaining:
        return ""
    minutes, seconds = divmod(round(task.time_remaining), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"
