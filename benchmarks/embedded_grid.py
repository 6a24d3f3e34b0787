"""How settings are tried on an embedded task and which are chosen: the grid of ``embedded_compare.py``.

Every setting of a contestant is trained for a short time with one seed, the best few for longer with others (successive
halving; Jamieson & Talwalkar, 2016, arXiv:1502.07943), and what is chosen has the best mean accuracy there. Where that
is at an end of what was tried, the grid grows by one more setting beyond it, until it is not.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from embedded_entries import CONTESTANTS, PROBLEMS, RUNGS, TASKS, Chosen, Entry, Setting, fields_of_task, known

from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import Comparison
from dppo_lab.comparison.results import result_of

Pace = Callable[[str, Entry, Setting], float]
"""Seconds per step of a contestant, called so, with a setting."""
Train = Callable[[Comparison], object]
"""Trains what a comparison lacks."""
AXES = ("learning_rate", "completions")
"""What the grid grows along, by factors of two."""


def comparison(folder: Path, task: str, contestants: Iterable[Contestant], seeds: Iterable[int]) -> Comparison:
    """The comparison that runs of a task are part of.

    Args:
        folder: of the task's runs of one kind.
        task: a key of ``TASKS``.
        contestants: who is compared.
        seeds: of the runs.
    """
    config = fields_of_task(task)
    return Comparison(folder=folder, contestants=tuple(contestants), seeds=tuple(seeds), config=config)


def steps_in(seconds: float, seconds_per_step: float, least: int = 2) -> int:
    """Steps that take about so many seconds, at least ``least``.

    Args:
        seconds: of a run, > 0.
        seconds_per_step: > 0.
        least: >= 1.
    """
    return max(least, round(seconds / seconds_per_step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a setting reached on a rung."""

    accuracy: float
    """Mean over seeds at the end of the runs, in [0, 1]."""
    per_seed: Mapping[int, float]
    seconds_per_step: float
    """Mean over its runs."""


class Grid:
    """The runs of a task's grid.

    Args:
        work: folder of all runs.
        task: a key of ``TASKS``.
    """

    def __init__(self, work: Path, task: str) -> None:
        self._work, self._task = work, task

    def folder(self, rung: int) -> Path:
        """Of the runs of a rung.

        Args:
            rung: its number, from 0.
        """
        return self._work / self._task / "grid" / f"rung_{rung + 1}"

    def train(self, name: str, entry: Entry, pace: Pace, train: Train) -> None:
        """Every rung of a contestant, and what lies beyond the ends of the grid.

        Args:
            name: of the contestant.
            entry: the contestant, with a grid of its own.
            pace: of steps.
            train: called with the runs of a rung.
        """
        wanted = [setting for setting in entry.grid() if self._fits(setting)]
        for rung in range(len(RUNGS)):
            if rung:
                wanted = self.survivors(name, rung)
            self._train(name, entry, rung, wanted, pace, train)
        asked: set[Setting] = set()  # one that failed is not asked for again
        while further := [setting for setting in self.beyond(name, entry) if setting not in asked]:
            asked |= {*further}
            self._train(name, entry, len(RUNGS) - 1, further, pace, train)

    def survivors(self, name: str, rung: int) -> list[Setting]:
        """Settings that get to a rung: the best of the one below, for every contestant that is chosen from it.

        Args:
            name: of the contestant whose grid it is.
            rung: its number, from 1.
        """
        below, kept = self.tried(name, rung - 1), []
        for _, entry in _choosing(name):
            own = [setting for setting in below if setting.group in entry.groups]
            kept += sorted(own, key=lambda setting: -below[setting].accuracy)[: RUNGS[rung].keep]
        return list(dict.fromkeys(kept))

    def beyond(self, name: str, entry: Entry) -> list[Setting]:
        """One setting past each end of the grid at which something was chosen, where it has not been tried.

        Args:
            name: of the contestant whose grid it is.
            entry: the contestant.
        """
        last, found = self.tried(name, len(RUNGS) - 1), []
        for _, each in _choosing(name):
            best = _best(last, each, entry)
            if best is None:
                continue
            for axis in AXES:
                tried = {getattr(setting, axis) for setting in (*entry.grid(), *last)}
                value = getattr(best, axis)
                further = [value / 2] * (value == min(tried)) + [value * 2] * (value == max(tried))
                found += [replace(best, **{axis: type(value)(other)}) for other in further]
        return [setting for setting in dict.fromkeys(found) if self._fits(setting)]

    def tried(self, name: str, rung: int) -> dict[Setting, Tried]:
        """What the settings of a contestant reached on a rung, those whose runs have all finished.

        Args:
            name: of the contestant.
            rung: its number, from 0.
        """
        found = {}
        for folder in sorted((self.folder(rung) / "runs").glob(f"{name}-g*")):
            setting = Setting.read(folder.name.removeprefix(f"{name}-"))
            any_one = CONTESTANTS[name].contestant(folder.name, setting, 1)
            compared = comparison(self.folder(rung), self._task, [any_one], RUNGS[rung].seeds)
            runs = [result_of(compared, any_one, seed) for seed in compared.seeds]
            if all(run.finished for run in runs):
                last = [run.curve[-1] for run in runs]
                found[setting] = Tried(
                    accuracy=float(np.mean([end.accuracy for end in last])),
                    per_seed={run.seed: end.accuracy for run, end in zip(runs, last, strict=True)},
                    seconds_per_step=float(np.mean([end.seconds / end.step for end in last])),
                )
        return found

    def choose(self, name: str, entry: Entry) -> Chosen | None:
        """The setting with the best mean accuracy on the last rung; None where none was tried.

        Args:
            name: of the contestant.
            entry: the contestant; one without groups has the setting of another, and None is found for it.
        """
        source = entry.tuned_as or name
        last = self.tried(source, len(RUNGS) - 1)
        best = _best(last, entry, CONTESTANTS[source])
        if best is None:
            return None
        ends = {axis: [getattr(setting, axis) for setting in (*CONTESTANTS[source].grid(), *last)] for axis in AXES}
        return Chosen(
            setting=best,
            accuracy=last[best].accuracy,
            seconds_per_step=last[best].seconds_per_step,
            at_edge=[axis for axis, tried in ends.items() if getattr(best, axis) in (min(tried), max(tried))],
        )

    def _fits(self, setting: Setting) -> bool:
        """Whether a step has a prompt at least, and no more than the task has."""
        return 1 <= setting.completions / setting.group <= PROBLEMS[self._task]

    def _train(self, name: str, entry: Entry, rung: int, settings: Iterable[Setting], pace: Pace, train: Train) -> None:
        seconds = TASKS[self._task].rungs[rung]
        contestants = [
            entry.contestant(setting.named(name), setting, steps_in(seconds, pace(name, entry, setting), 1), 1)
            for setting in settings
        ]
        if contestants:
            train(comparison(self.folder(rung), self._task, contestants, RUNGS[rung].seeds))


def _choosing(name: str) -> list[tuple[str, Entry]]:
    """Contestants that are chosen from a grid: its own, and those tuned as it with group sizes of their own."""
    every = known(CONTESTANTS).items()
    return [(other, entry) for other, entry in every if entry.groups and name in (other, entry.tuned_as)]


def _best(tried: Mapping[Setting, Tried], chosen_for: Entry, source: Entry) -> Setting | None:
    """The best with a group size of the contestant; of equal ones one that the grid began with, so that growth ends."""
    first = set(source.grid())
    own = [setting for setting in tried if setting.group in chosen_for.groups]
    return max(own, key=lambda setting: (tried[setting].accuracy, setting in first), default=None)
