"""What the runs of ``embedded_compare.py`` reached: the settings that the grid chose, or one file of everything.

python benchmarks/embedded_summary.py grid [--work FOLDER] [--settings FILE.json]
python benchmarks/embedded_summary.py [--work FOLDER] [--settings FILE.json] [--output FILE.json]
python benchmarks/embedded_summary.py --ours dppo_default --against trl_g8,cppo ...   # runs of another machine, say

``best_against`` holds, for each opponent, the opponent's seconds to a target over those of the best of ours, as
``dppo_lab.comparison.survival.Ratio`` has it (docs/compare.md says what is censored and how that counts). ``each`` has
it by task and target; the figures beside it are those of the task and target where its median is least.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from embedded_choice import write_settings
from embedded_compare import entries_of
from embedded_entries import (
    BY_ITSELF,
    EVALUATIONS,
    MORE,
    MORE_SEEDS,
    OPPONENTS,
    PAIR,
    SEEDS,
    SETTINGS_FILE,
    TARGETS,
    TASKS,
    Chosen,
    Entry,
    Setting,
    fields_of_task,
    read_settings,
    setting_of,
)
from embedded_grid import comparison
from embedded_sizes import levels, pairs_of
from embedded_tables import show_all
from embedded_unseen import unseen
from transformers.utils import logging as transformers_logging

from answer_judge.files import read_json, write_json
from dppo.environment import environment
from dppo.errors import ConfigError
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.curves import AMOUNTS
from dppo_lab.comparison.results import Results, curves_of, read_results, summary_of
from dppo_lab.comparison.targets import Curves, final_target, ratios, spent
from dppo_lab.runs.parsing import read_file

FORMAT = 2
STAGES_SHOWN = ("main", "more", "ablation", "sizes")
BEFORE = ("target", "to_target", "speedup", "baseline")
"""What ``dppo compare`` says of one baseline, and this file of several targets."""


def main() -> int:
    """Read, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["grid", "all"], default="all")
    parser.add_argument("--work", type=Path, default=Path("runs/embedded_compare"), help="folder of all runs")
    parser.add_argument("--settings", type=Path, default=SETTINGS_FILE, help="what the grid chose")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/embedded_compare.json"))
    parser.add_argument("--ours", help="whose figures stand beside the opponents'; the best of ours by default")
    parser.add_argument("--against", default=",".join(OPPONENTS), help="opponents")
    parser.add_argument("--targets", default=",".join(TARGETS), help="whose final accuracies are the targets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    if options.what == "grid":
        write_settings(options.work, options.settings)
    else:
        asked = (options.against.split(","), options.targets.split(","))
        write_summary(options.work, options.settings, options.output, options.ours, *asked)
    return 0


def write_summary(
    work: Path,
    settings: Path,
    output: Path,
    ours: str | None = None,
    opponents: Sequence[str] = OPPONENTS,
    targets: Sequence[str] = TARGETS,
) -> None:
    """Read all runs, write one file and print its tables; a task without runs in the folder keeps its record there.

    Args:
        work: folder of all runs.
        settings: the file of settings.
        output: the JSON file.
        ours: a contestant; None for the best of ours.
        opponents: what it is measured against.
        targets: whose final accuracies, of the same seed, are the targets.
    """
    before = read_json(output, advice=f"Move it away: mv {output} {output}.old") if output.exists() else {"tasks": {}}
    tasks = {}
    for task in TASKS:
        if (work / task / "reported" / "runs").is_dir():
            chosen, best = read_settings(settings, task)
            best = ours or best
            tasks[task] = task_record(work / task / "reported", task, chosen, best, opponents, targets)
            tasks[task]["unseen"] = unseen(work / task / "reported", task, (*MORE, best), SEEDS + MORE_SEEDS)
        elif task in before["tasks"]:
            tasks[task] = before["tasks"][task]
            print(f"{task}: as it is in {output}, since {work} has no runs of it")
    record = {
        "format": FORMAT,
        "made_with": environment(),
        "seconds": "CPU seconds of the one thread that trains",
        "seeds": [*SEEDS, *MORE_SEEDS],
        "evaluations": EVALUATIONS,
        "best_against": best_against({task: each["best_against"] for task, each in tasks.items()}),
        "tasks": tasks,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, record)
    print(show_all(record))


def task_record(
    folder: Path,
    task: str,
    chosen: Mapping[str, Chosen],
    best: str,
    opponents: Sequence[str] = OPPONENTS,
    wanted: Sequence[str] = TARGETS,
) -> dict[str, Any]:
    """Every figure of a task.

    Args:
        folder: of its reported runs.
        task: a key of ``TASKS``.
        chosen: settings by contestant.
        best: of ours.
        opponents: what it is measured against.
        wanted: whose final accuracies, of the same seed, are the targets.

    Raises:
        ConfigError: a contestant that others are measured against has no run.
    """
    every = entries_of("main") | entries_of("ablation") | entries_of("sizes")
    entries = {name: entry for name, entry in every.items() if (folder / "runs" / name).is_dir()}
    if lacking := sorted({*wanted, *opponents, best} - entries.keys()):
        raise ConfigError(f"{folder} has no run of {', '.join(lacking)}. Run embedded_compare.py main --task {task}")
    settings = {name: setting_of(name, entry, chosen) for name, entry in entries.items()}
    contestants = [contestant_of(folder, name, entry, settings[name]) for name, entry in entries.items()]
    compared = comparison(folder, task, contestants, SEEDS + MORE_SEEDS)
    results = {name: asked_for(found) for name, found in read_results(compared).items()}
    curves = {name: curves_of(found) for name, found in results.items()}
    summed = summary_of(compared, results)
    targets = {name: final_target(name, curves[name]) for name in wanted}
    for name, method in summed["methods"].items():
        method["setting"] = asdict(settings[name])
    return {
        **{key: value for key, value in summed.items() if key not in BEFORE},
        "fields": fields_of_task(task),
        "stages": {stage: list(entries_of(stage, best)) for stage in STAGES_SHOWN},
        "best": best,
        "targets": {name: target.as_json() for name, target in targets.items()},
        "to_target": {name: spent(curves, target) for name, target in targets.items()},
        "speedup": {name: ratios(curves, target, wanted[0]) for name, target in targets.items()},
        "best_against": against_all(curves, best, opponents, wanted),
        "default": BY_ITSELF,
        "default_against": against_all(curves, BY_ITSELF, opponents, wanted) if BY_ITSELF in curves else {},
        "pair": PAIR,
        "sizes": levels(curves),
        "sooner_at_sizes": {
            size: against_all(curves, default, [control], wanted)[control]
            for size, (control, default) in pairs_of(curves).items()
        },
    }


def contestant_of(folder: Path, name: str, entry: Entry, setting: Setting) -> Contestant:
    """The contestant with the steps that its runs had.

    Args:
        folder: of the runs.
        name: of the contestant.
        entry: the contestant.
        setting: that was chosen for it.
    """
    config = next((folder / "runs" / name).glob("seed_*/config.yaml"))
    return entry.contestant(name, setting, read_file(config)["max_steps"])


def asked_for(found: Results) -> Results:
    """Runs of the seeds that the contestant was given: of ``MORE_SEEDS`` those that were started.

    Args:
        found: by seed.
    """
    return {seed: run for seed, run in found.items() if seed in SEEDS or run.status != "missing"}


def against_all(
    curves: Mapping[str, Curves], name: str, opponents: Sequence[str], targets: Sequence[str]
) -> dict[str, Any]:
    """What each opponent spent to each target over what a contestant of ours did.

    Args:
        curves: by contestant.
        name: of ours.
        opponents: what it is measured against.
        targets: whose final accuracies.
    """
    return {opponent: {target: against(curves, target, opponent, name) for target in targets} for opponent in opponents}


def against(curves: Mapping[str, Curves], target: str, opponent: str, ours: str) -> dict[str, Any]:
    """What an opponent spent to a target over what one of ours did: seconds, and the other amounts beside it.

    Args:
        curves: by contestant.
        target: whose final accuracy it is.
        opponent: the baseline of the ratio.
        ours: a contestant.
    """
    goal = final_target(target, curves[target])
    pair = {name: curves[name] for name in (opponent, ours)}
    found = {over: ratios(pair, goal, opponent, over)[ours] for over in AMOUNTS}
    return {**found.pop("seconds"), "missing": goal.missing or None, **found}


def best_against(tasks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """By opponent: figures of the task and target where the median is least, and ``each`` of them.

    A target that does not exist, since its contestant did not improve, is passed over; a median that does not exist,
    since the best of ours missed the target in half of the seeds, is the least of all.

    Args:
        tasks: by task, opponent and target.
    """
    found = {}
    for opponent in dict.fromkeys(name for by_opponent in tasks.values() for name in by_opponent):
        each = {task: dict(by_opponent[opponent]) for task, by_opponent in tasks.items() if opponent in by_opponent}
        places = [(task, name) for task, by_target in each.items() for name in by_target]
        there = [place for place in places if not each[place[0]][place[1]]["missing"]]
        if there:
            medians = {place: each[place[0]][place[1]]["median"] for place in there}
            least = min(there, key=lambda place: -math.inf if medians[place] is None else medians[place])
            found[opponent] = {"task": least[0], "target": least[1], **each[least[0]][least[1]], "each": each}
        else:
            found[opponent] = {"median": None, "low": None, "high": None, "each": each}
    return found


if __name__ == "__main__":
    sys.exit(main())
