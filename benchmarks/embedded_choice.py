"""Which settings the grid of ``embedded_compare.py`` chooses, and which method is the best of ours.

Settings are chosen by mean accuracy at the end of the grid's runs, which all had about the same seconds. The best of
ours is the unbiased method of this library with the best of these: it is settled before a reported run is looked at.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from embedded_compare import comparison
from embedded_entries import (
    COMPLETIONS,
    CONTESTANTS,
    GRID_SEEDS,
    LEARNING_RATES,
    TASKS,
    Chosen,
    Entry,
    known,
)
from embedded_tables import show_grid

from dppo.comparison.results import read_results
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
    found = {task: grid_of(work, task) for task in TASKS if (work / task / "grid" / "runs").is_dir()}
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
    entries = known(CONTESTANTS)
    tried = {setting.named(name): (entry, setting) for name, entry in entries.items() for setting in entry.grid()}
    names = [entry.contestant(name, setting, 1) for name, (entry, setting) in tried.items()]
    found = read_results(comparison(work / task / "grid", task, names, GRID_SEEDS))
    runs = {name: list(each.values()) for name, each in found.items() if all(run.finished for run in each.values())}
    figures = {
        name: {
            "accuracy": float(np.mean([run.curve[-1].accuracy for run in each])),
            "per_seed": {str(run.seed): run.curve[-1].accuracy for run in each},
            "seconds": float(np.mean([run.curve[-1].seconds for run in each])),
            "seconds_per_step": float(np.mean([run.curve[-1].seconds / run.curve[-1].step for run in each])),
        }
        for name, each in runs.items()
    }
    chosen = {name: found for name, entry in entries.items() if (found := choose(name, entry, figures))}
    return {
        "seeds": list(GRID_SEEDS),
        "settings": {name: each.as_json() for name, each in chosen.items()},
        "best": best_of_ours(chosen),
        "unfinished": sorted(set(tried) - set(runs)),
        "grid": figures,
    }


def choose(name: str, entry: Entry, figures: Mapping[str, Mapping[str, Any]]) -> Chosen | None:
    """The setting with the best mean accuracy; None where nothing was tried. Of equal ones the first of the grid.

    Args:
        name: of the contestant.
        entry: the contestant.
        figures: of every run of the grid, by its name.
    """
    source = entry.tuned_as or name
    own = [setting for setting in CONTESTANTS[source].grid() if setting.group in entry.groups]
    tried = [setting for setting in own if setting.named(source) in figures]
    if not tried:
        return None
    best = max(tried, key=lambda setting: figures[setting.named(source)]["accuracy"])
    found, axes = figures[best.named(source)], {"learning_rate": LEARNING_RATES, "completions": COMPLETIONS}
    return Chosen(
        setting=best,
        accuracy=found["accuracy"],
        seconds_per_step=found["seconds_per_step"],
        at_edge=[axis for axis, ends in axes.items() if getattr(best, axis) in (min(ends), max(ends))],
    )


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
