"""What a running command shows: bars on a terminal, a plain line now and then anywhere else."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

EVERY = 30.0
"""Seconds between plain lines."""
MOST_BARS = 8
"""Bars on a screen: what was updated longest ago makes place."""
RECENT = 20
"""Updates that a rate is measured over."""
SHOWN = (
    ("loss", "loss {:.3f}"),
    ("prune/kept_share", "kept {:.0%}"),
    ("accuracy", "accuracy {:.3f}"),
    ("eval/average/pass@1", "accuracy {:.3f}"),
)
"""Figures worth a place, in order, by metric."""
Clock = Callable[[], float]


def shown(figures: Mapping[str, float]) -> list[str]:
    """What of a run's newest figures is shown, in words.

    Args:
        figures: by metric, as logged: docs/metrics.md. Unknown ones are left out, and the loss of a run with rewards,
            which says nothing.
    """
    words = []
    seconds = figures.get("total/seconds", 0.0)
    if seconds > 0 and "total/rollouts" in figures:
        words.append(f"{figures['total/rollouts'] / seconds:.3g} completions/s")
    for name, text in SHOWN:
        if name in figures and not (name == "loss" and "reward" in figures):
            words.append(text.format(figures[name]))
    return words


class Pace:
    """How fast something gets done, from its latest updates; ``now`` gives the time in seconds."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._seen: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def see(self, done: float) -> None:
        """Take note that so much is done now."""
        if not self._seen or self._seen[-1][1] != done:
            self._seen.append((self._now(), done))

    @property
    def rate(self) -> float | None:
        """Units per second; None while that is not known."""
        if len(self._seen) < 2:
            return None
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if end > start and last > first else None


class Board:
    """Where progress is shown, a context manager; this one shows nothing, as every process but the first."""

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """Show how far ``name`` is.

        Args:
            name: of what is in progress; several may be, one below the other.
            done: optimizer steps, or the share done where ``total`` is 1.
            total: optimizer steps, or 1.
            figures: the newest, by metric; see ``shown``.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Lines(Board):
    """A line now and then, without control characters: for files, pipes, notebooks and logs.

    Args:
        console: where to.
        every: seconds between lines of one name; the last line always comes.
        now: gives the time in seconds.
    """

    def __init__(self, console: Console, *, every: float = EVERY, now: Clock = time.monotonic) -> None:
        self._console, self._every, self._now = console, every, now
        self._paces: dict[str, Pace] = {}
        self._said: dict[str, float] = {}

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """As ``Board`` says."""
        pace = self._paces.setdefault(name, Pace(self._now))
        pace.see(done)
        last = self._said.setdefault(name, self._now())
        if self._now() - last < (self._every if done < total else 0):
            return
        self._said[name] = self._now() if done < total else math.inf
        words = [count(done, total), rate(pace, total), *shown(figures or {}), left(pace, done, total)]
        line = f"{name}: {', '.join(filter(None, words))}"
        print(line, file=self._console.file, flush=True)


class Bars(Board):
    """One bar per name, the latest few, on a terminal.

    They begin with the first update, so what is printed before stays as it is.

    Args:
        console: a terminal.
        now: gives the time in seconds.
    """

    def __init__(self, console: Console, *, now: Clock = time.monotonic) -> None:
        names = ("count", "rate", "figures", "left")
        texts = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in names]
        self._bars = Progress(TextColumn("{task.description}", markup=False), BarColumn(20), *texts, console=console)
        self._tasks: dict[str, TaskID] = {}
        self._paces: dict[str, Pace] = {}
        self._now = now

    def update(self, name: str, done: float, total: float = 1.0, figures: Mapping[str, float] | None = None) -> None:
        """As ``Board`` says."""
        if name not in self._tasks:
            self._bars.start()
            self._tasks[name] = self._bars.add_task(name, count="", rate="", figures="", left="")
        pace = self._paces.pop(name, None) or Pace(self._now)
        self._paces[name] = pace  # the latest last
        for index, known in enumerate(reversed(self._paces)):
            self._bars.update(self._tasks[known], visible=index < MOST_BARS)
        pace.see(done)
        self._bars.update(
            self._tasks[name],
            completed=done,
            total=total,
            count=count(done, total),
            rate=rate(pace, total),
            figures="  ".join(shown(figures or {})),
            left=left(pace, done, total),
        )

    def __exit__(self, *error: object) -> None:
        if self._tasks:
            self._bars.stop()


def open_board(console: Console, *, first: bool = True, plain: bool = False) -> Board:
    """The board for where a command runs: of the ``first`` process, or lines on a terminal too if ``plain``."""
    if not first:
        return Board()
    terminal = console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter
    # rich takes a pipe for a terminal where the environment says so; a file must never get control characters.
    return Bars(console) if terminal and console.file.isatty() and not plain else Lines(console)


def count(done: float, total: float) -> str:
    """``12/60`` steps, or ``20%`` where the total is 1."""
    return f"{done:.0%}" if total == 1 else f"{done:.0f}/{total:.0f} steps"


def rate(pace: Pace, total: float) -> str:
    """Steps per second; empty for shares, and while it is not known."""
    return "" if pace.rate is None or total == 1 else f"{pace.rate:.3g} steps/s"


def left(pace: Pace, done: float, total: float) -> str:
    """Time that is left at the latest pace; empty when done, and while it is not known."""
    if pace.rate is None or done >= total:
        return ""
    minutes, seconds = divmod(round((total - done) / pace.rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"
