"""Progress of a running command: bars on a terminal, elsewhere a plain line from time to time."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn
from rich.table import Column

EVERY = 30.0
"""Seconds between plain lines."""
MOST_BARS = 8
"""Most bars on a screen; the one updated longest ago is hidden first."""
NARROW = 120
"""On a screen of fewer columns there is no bar, and figures that do not fit are cut off at their end."""
RECENT = 3600.0
"""Seconds over which speed is measured; longer than any step takes, or there would be no speed."""
SHOWN = (
    ("loss", "loss {:.3f}"),
    ("reward", "reward {:.3f}"),
    ("candidates/reward", "candidates {:.3f}"),
    ("accuracy", "accuracy {:.3f}"),
    ("eval/average/pass@1", "accuracy {:.3f}"),
    ("prune/kept_share", "kept {:.0%}"),
)
"""The metrics that are shown, in this order."""
Clock = Callable[[], float]


def shown(figures: Mapping[str, float]) -> list[str]:
    """A run's newest figures in words, without the loss where there are rewards: it tells nothing there."""
    words = [
        text.format(figures[name])
        for name, text in SHOWN
        if name in figures and not (name == "loss" and "reward" in figures)
    ]
    seconds = figures.get("total/seconds", 0.0)
    if seconds > 0 and "total/rollouts" in figures:
        words.append(f"{figures['total/rollouts'] / seconds:.3g} completions/s")
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
        """As ``Board`` says."""
        task = measured(self._measures, name, done, total)
        last = self._said.setdefault(name, self._now())
        if self._now() - last < (self._every if done < total else 0):
            return
        self._said[name] = self._now() if done < total else math.inf
        line = f"{name}: {', '.join(filter(None, [count(task), rate(task), *shown(figures or {}), left(task)]))}"
        print(line, file=self._console.file, flush=True)


class Bars(Board):
    """On a terminal one bar per name, for the latest few. They begin with the first update."""

    def __init__(self, console: Console, *, now: Clock = time.monotonic) -> None:
        narrow = console.width < NARROW
        texts = [
            TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=Column(no_wrap=True, ratio=ratio))
            for name, ratio in (("count", None), ("rate", None), ("figures", 1), ("left", None))
        ]
        columns = TextColumn("{task.description}", markup=False), *([] if narrow else [BarColumn(20)]), *texts
        self._bars = Progress(*columns, console=console, get_time=now, speed_estimate_period=RECENT, expand=narrow)
        self._latest: dict[str, TaskID] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """As ``Board`` says."""
        self._bars.start()
        task = measured(self._bars, name, done, total)
        self._latest.pop(name, None)
        self._latest[name] = task.id  # the latest last
        for index, known in enumerate(reversed(self._latest.values())):
            self._bars.update(known, visible=index < MOST_BARS)
        figures_shown = "  ".join(shown(figures or {}))
        self._bars.update(task.id, count=count(task), rate=rate(task), figures=figures_shown, left=left(task))

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
        known = progress.add_task(name, total=total, count="", rate="", figures="", left="")
    progress.update(known, completed=done, total=total)
    return progress.tasks[known]


def count(task: Task) -> str:
    """``12/60`` steps, or ``20%`` where the total is 1."""
    return f"{task.completed:.0%}" if task.total == 1 else f"{task.completed:.0f}/{task.total:.0f} steps"


def rate(task: Task) -> str:
    """Steps per second; empty for shares, and while unknown."""
    return f"{task.speed:.3g} steps/s" if task.speed and task.total != 1 else ""


def left(task: Task) -> str:
    """Time left at the latest speed; empty when done, and while unknown."""
    if not task.time_remaining:
        return ""
    minutes, seconds = divmod(round(task.time_remaining), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"
