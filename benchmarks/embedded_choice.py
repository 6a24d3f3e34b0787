"""Which settings the grid of ``embedded_compare.py`` chooses, and which method is the best of ours.

The best of ours is the unbiased method of this library with the best mean accuracy at the end of the runs of the stage
``ours``, of its best accuracy in the grid before that stage was run: it is settled on seeds that nothing reported uses.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from embedded_compare import entries_of
from embedded_entries import CONTESTANTS, OURS_SEEDS, RUNGS, TASKS, known
from embedded_grid import Grid, comparison
from embedded_tables import show_grid

from answer_judge.files import read_json, write_json
from dppo.environment import environment
from dppo.errors import ConfigError
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.results import result_of

FORMAT = 1


def write_settings(work: Path, path: Path) -> None:
    """Choose settings on every task whose grid was run, and write them.

    Other tasks stay as they are in the file, and so do contestants whose grid is not among these runs.

    Args:
        work: folder of all runs.
        path: the file of settings.
    """
    before = read_json(path, advice="Delete it.") if path.exists() else {"tasks": {}}
    found = {
        task: grid_of(work, task, before["tasks"].get(task, {})) for task in TASKS if (work / task / "grid").is_dir()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, "tasks": {**before["tasks"], **found}, "environment": environment()})
    for task, each in found.items():
        print(f"{task}\n\n{show_grid(each)}\n")


def grid_of(work: Path, task: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """What the grid of a task showed, and what it chooses.

    Args:
        work: folder of all runs.
        task: a key of ``TASKS``.
        before: the record of the task so far, of runs that may be somewhere else.
    """
    grid, entries = Grid(work, task), known(CONTESTANTS)
    found = {name: each.as_json() for name, entry in entries.items() if (each := grid.choose(name, entry))}
    kept = before.get("settings", {}) | found
    chosen = {name: kept[name] for name in entries if name in kept}
    shown = {
        f"rung_{rung + 1}": before.get("grid", {}).get(f"rung_{rung + 1}", {})
        | {
            setting.named(name): asdict(each)
            for name, entry in entries.items()
            if entry.grid()
            for setting, each in grid.tried(name, rung).items()
        }
        for rung in range(len(RUNGS))
    }
    ours = before.get("ours", {}) | accuracy_of_ours(work / task / "ours", task)
    return {
        "rungs": [{**asdict(rung), "seconds": TASKS[task].rungs[place]} for place, rung in enumerate(RUNGS)],
        "settings": chosen,
        "best": best_of_ours(ours or {name: each["accuracy"] for name, each in chosen.items()}),
        "ours": ours,
        "unfinished": [name for name, entry in entries.items() if entry.groups and name not in chosen],
        "grid": shown,
    }


def accuracy_of_ours(folder: Path, task: str) -> dict[str, float]:
    """Mean final accuracy of each of ours over ``OURS_SEEDS``, in [0, 1]; none of those that have not finished.

    Args:
        folder: of the runs of the stage ``ours``.
        task: a key of ``TASKS``.
    """
    found = {}
    for name in entries_of("ours"):
        any_one = Contestant(name=name, method=CONTESTANTS[name].method, overrides={})
        runs = [result_of(comparison(folder, task, [any_one], OURS_SEEDS), any_one, seed) for seed in OURS_SEEDS]
        if all(run.finished for run in runs):
            found[name] = float(np.mean([run.curve[-1].accuracy for run in runs]))
    return found


def best_of_ours(accuracy: Mapping[str, float]) -> str:
    """The unbiased method of ours with the best accuracy.

    Args:
        accuracy: by contestant, in [0, 1].

    Raises:
        ConfigError: none of ours was tried.
    """
    ours = [name for name in accuracy if CONTESTANTS[name].ours and CONTESTANTS[name].unbiased]
    if not ours:
        raise ConfigError("no unbiased method of ours has finished its grid: embedded_compare.py grid --only dppo")
    return max(ours, key=lambda name: accuracy[name])
