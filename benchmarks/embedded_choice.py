"""Which settings the grid of ``embedded_compare.py`` chooses, and which method is the best of ours.

The best of ours is the unbiased method of this library with the best accuracy in its grid: it is settled before a
reported run is looked at.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embedded_entries import CONTESTANTS, RUNGS, TASKS, Chosen, known
from embedded_grid import Grid
from embedded_tables import show_grid

from dppo.environment import environment
from dppo.errors import ConfigError
from dppo.files import read_json, write_json

FORMAT = 1


def write_settings(work: Path, path: Path) -> None:
    """Choose settings on every task whose grid was run, and write them; other tasks stay as they are in the file.

    Args:
        work: folder of all runs.
        path: the file of settings.
    """
    before = read_json(path, advice="Delete it.") if path.exists() else {"tasks": {}}
    found = {task: grid_of(work, task) for task in TASKS if (work / task / "grid").is_dir()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, "tasks": {**before["tasks"], **found}, "environment": environment()})
    for task, each in found.items():
        print(f"{task}\n\n{show_grid(each)}\n")


def grid_of(work: Path, task: str) -> dict[str, Any]:
    """What the grid of a task showed, and what it chooses.

    Args:
        work: folder of all runs.
        task: a key of ``TASKS``.
    """
    grid, entries = Grid(work, task), known(CONTESTANTS)
    chosen = {name: found for name, entry in entries.items() if (found := grid.choose(name, entry))}
    shown = {
        f"rung_{rung + 1}": {
            setting.named(name): asdict(each)
            for name, entry in entries.items()
            if entry.grid()
            for setting, each in grid.tried(name, rung).items()
        }
        for rung in range(len(RUNGS))
    }
    return {
        "rungs": [{**asdict(rung), "seconds": TASKS[task].rungs[place]} for place, rung in enumerate(RUNGS)],
        "settings": {name: each.as_json() for name, each in chosen.items()},
        "best": best_of_ours(chosen),
        "unfinished": [name for name, entry in entries.items() if entry.groups and name not in chosen],
        "grid": shown,
    }


def best_of_ours(chosen: Mapping[str, Chosen]) -> str:
    """The unbiased method of ours whose best setting had the best accuracy in the grid.

    Args:
        chosen: by contestant.

    Raises:
        ConfigError: none of ours was tried.
    """
    ours = [name for name in chosen if CONTESTANTS[name].ours and CONTESTANTS[name].unbiased]
    if not ours:
        raise ConfigError("no unbiased method of ours has finished its grid: embedded_compare.py grid --only dppo")
    return max(ours, key=lambda name: chosen[name].accuracy)
