"""Every method beside TRL's own trainer on embedded tasks: tuning, the comparison, and what each part is worth.

python benchmarks/embedded_compare.py grid --task embedded [--work FOLDER] [--only trl,dppo]
python benchmarks/embedded_summary.py grid                  # chooses: benchmarks/results/embedded_settings.json
python benchmarks/embedded_compare.py ours --task embedded  # then `embedded_summary.py grid` again: the best of ours
python benchmarks/embedded_compare.py main --task embedded  # and: more, ablation, sizes
python benchmarks/embedded_summary.py                       # benchmarks/results/embedded_compare.json, the tables

Every contestant has the same seconds of training on a task; how many steps those are comes from a short run that times
its steps (for what is reported, from a pilot as long as the grid's last round, with a seed of its own), and its
learning rate falls over its own length. Seconds are CPU seconds of the one thread that trains: on a busy machine a
clock on the wall says more about the other work. ``more`` is a few contestants on further seeds, ``sizes`` the
control and the default at equal sizes of a step.
``embedded_entries.py`` says who takes part and what is tried.

A stage trains what it lacks: one that was stopped goes on where it was. Two calls with different tasks, seeds or
contestants can run beside each other, one core each; what both need is made once, by the first.
"""

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental in TRL, and says so every time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from embedded_entries import (
    CONTESTANTS,
    LEARNING_RATES,
    MORE,
    MORE_SEEDS,
    OURS_SEEDS,
    RUNGS,
    SEEDS,
    SETTINGS_FILE,
    TASKS,
    Chosen,
    Entry,
    Setting,
    ablation,
    known,
    read_settings,
    setting_of,
    sizes,
)
from embedded_grid import Grid, Pace, comparison, steps_in
from transformers.utils import logging as transformers_logging

from dppo.errors import ConfigError
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import Comparison, open_folder
from dppo_lab.comparison.results import result_of
from dppo_lab.comparison.runner import Event, make_start, run_comparison
from dppo_lab.runs.folder import TOTALS
from dppo_lab.runs.reader import read_logs

STAGES = ("grid", "ours", "main", "more", "ablation", "sizes")
TIMED_STEPS = 8
"""Of a run that times steps; the first half is for warming up."""
PILOT_SEED = 103
"""Which nothing else uses."""


def reported(
    entries: Mapping[str, Entry], chosen: Mapping[str, Chosen], seconds: float, pace: Pace
) -> tuple[Contestant, ...]:
    """Contestants with the settings that the grid chose.

    Args:
        entries: by name.
        chosen: by name.
        seconds: of a run.
        pace: of steps.

    Raises:
        ConfigError: the grid was not run for one of them.
    """
    found = []
    for name, entry in entries.items():
        setting = setting_of(name, entry, chosen)
        found.append(entry.contestant(name, setting, steps_in(seconds, pace(name, entry, setting))))
    return tuple(found)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock for the block; another process waits until it is free.

    Args:
        path: of a file that is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start_of(work: Path, task: str, entry: Entry, folder: Path, seed: int) -> Path:
    """The model that all runs of a seed in a folder start from, made by the first process that asks.

    Args:
        work: folder of all runs.
        task: a key of ``TASKS``.
        entry: any contestant.
        folder: of the runs.
        seed: of the runs.
    """
    any_one = entry.contestant("any", Setting(learning_rate=1e-4, completions=8, group=8), 1)
    made_for = comparison(folder, task, [any_one], [seed])
    with locked(work / "locks" / f"{task}-start-{seed}"):
        open_folder(made_for, overwrite=False)
        make_start(made_for, any_one, seed, lambda **news: None)
    return made_for.start_folder(seed)


class Timing:
    """Seconds per step, each measured by a short run that stays in the folder and is found there again."""

    def __init__(self, work: Path, task: str) -> None:
        self._work, self._task = work, task

    def __call__(self, name: str, entry: Entry, setting: Setting) -> float:
        """Seconds per step of a contestant with a setting; its learning rate makes no difference.

        Args:
            name: of the contestant.
            entry: the contestant.
            setting: of the grid.
        """
        timed, contestant = self._run(name, entry, setting)
        with locked(self._work / "locks" / f"{self._task}-{contestant.name}"):
            return self._measured(timed, contestant)

    def pilot(self, name: str, entry: Entry, setting: Setting) -> float:
        """The same from a longer run, since steps change as the policy learns and the history grows.

        Args:
            name: of the contestant.
            entry: the contestant.
            setting: that was chosen for it.
        """
        steps = steps_in(TASKS[self._task].rungs[-1], self(name, entry, setting))
        contestant = entry.contestant(setting.named(name), setting, steps, 1)
        piloted = comparison(self._work / self._task / "pilots", self._task, [contestant], [PILOT_SEED])
        with locked(self._work / "locks" / f"{self._task}-pilot-{contestant.name}"):
            if not result_of(piloted, contestant, PILOT_SEED).finished:
                start_of(self._work, self._task, CONTESTANTS["trl"], piloted.folder, PILOT_SEED)
                run_comparison(piloted, show)
        result = result_of(piloted, contestant, PILOT_SEED)
        if not result.finished:
            raise ConfigError(f"{piloted.run_folder(contestant, PILOT_SEED)} {result.status}: {result.error}")
        return result.curve[-1].seconds / result.curve[-1].step

    def _run(self, name: str, entry: Entry, setting: Setting) -> tuple[Comparison, Contestant]:
        start = Grid(self._work, self._task).folder(0) / "starts" / f"seed_{RUNGS[0].seeds[0]}"
        setting = replace(setting, learning_rate=LEARNING_RATES[0])
        contestant = entry.contestant(setting.named(name), setting, TIMED_STEPS, 1)
        timed = comparison(self._work / self._task / "timing", self._task, [contestant], RUNGS[0].seeds[:1])
        few = {"model_name_or_path": str(start), "eval_benchmark_limit": 8, "eval_benchmark_samples": 1}
        return replace(timed, config={**timed.config, **few}), contestant

    def _measured(self, timed: Comparison, contestant: Contestant) -> float:
        (seed,) = timed.seeds
        if not result_of(timed, contestant, seed).finished:
            start_of(self._work, self._task, CONTESTANTS["trl"], Grid(self._work, self._task).folder(0), seed)
            run_comparison(timed, show)
        result = result_of(timed, contestant, seed)
        if not result.finished:
            raise ConfigError(f"{timed.run_folder(contestant, seed)} {result.status}: {result.error}")
        seconds = {log["step"]: log[TOTALS["seconds"]] for log in read_logs(timed.run_folder(contestant, seed))}
        return (seconds[TIMED_STEPS] - seconds[TIMED_STEPS // 2]) / (TIMED_STEPS - TIMED_STEPS // 2)


def show(event: Event) -> None:
    """One line for everything that happens, but steps."""
    if event.stage in ("kept", "finished", "failed"):
        print(f"{event.number}/{event.runs} {event.name} seed {event.seed}: {event.stage} {event.text}", flush=True)


def entries_of(stage: str, best: str = "") -> dict[str, Entry]:
    """Who takes part in a stage.

    Args:
        stage: one of ``STAGES``.
        best: of ours, for ``more``.
    """
    entries = known({"ablation": ablation, "sizes": sizes}.get(stage, lambda: CONTESTANTS)())
    if stage == "ours":
        return {name: entry for name, entry in entries.items() if entry.ours and entry.unbiased}
    return {name: entry for name, entry in entries.items() if stage != "more" or name in (*MORE, best)}


def main() -> int:
    """Train a stage of a task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--task", choices=list(TASKS), default=next(iter(TASKS)))
    parser.add_argument("--work", type=Path, default=Path("runs/embedded_compare"), help="folder of all runs")
    parser.add_argument("--settings", type=Path, default=SETTINGS_FILE, help="what the grid chose")
    parser.add_argument("--seeds", help="of reported runs, such as 0,1,2; those of the stage by default")
    parser.add_argument("--only", help="contestants, such as trl,dppo; all of the stage by default")
    parser.add_argument("--seconds", type=float, help="of each reported run's training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    stage, task, work = options.stage, options.task, options.work
    chosen, best = ({}, "") if stage == "grid" else read_settings(options.settings, task)
    entries = entries_of(stage, best)
    for name, entry in CONTESTANTS.items():
        if not entry.known:
            print(f"left out: {name}, this version has no method {entry.method}")
    only = options.only.split(",") if options.only else list(entries)
    if unknown := sorted(set(only) - entries.keys()):
        raise ConfigError(f"--only {unknown[0]} takes no part in {stage}. There are: {', '.join(entries)}")
    entries = {name: entry for name, entry in entries.items() if name in only}
    if stage == "grid":
        return run_grid(work, task, entries)
    seeds = {"ours": OURS_SEEDS, "more": MORE_SEEDS}.get(stage, SEEDS)
    seeds = tuple(int(word) for word in options.seeds.split(",")) if options.seeds else seeds
    seconds, folder = options.seconds or TASKS[task].reported, work / task / ("ours" if stage == "ours" else "reported")
    contestants = reported(entries, chosen, seconds, Timing(work, task).pilot)
    for seed in seeds:
        start_of(work, task, CONTESTANTS["trl"], folder, seed)
    print(f"{len(contestants) * len(seeds)} runs of about {seconds:g} s of training each", flush=True)
    return int(failed(run_comparison(comparison(folder, task, contestants, seeds), show)))


def run_grid(work: Path, task: str, entries: Mapping[str, Entry]) -> int:
    """Train the grid of every contestant that has one; 1 if a run failed.

    Args:
        work: folder of all runs.
        task: a key of ``TASKS``.
        entries: by name.
    """
    grid, timing, failures = Grid(work, task), Timing(work, task), 0

    def train(compared: Comparison) -> None:
        nonlocal failures
        for seed in compared.seeds:
            start_of(work, task, CONTESTANTS["trl"], compared.folder, seed)
        failures += failed(run_comparison(compared, show))

    for name, entry in entries.items():
        if entry.grid():
            print(f"{name}: {len(entry.grid())} settings", flush=True)
            grid.train(name, entry, timing, train)
    return int(failures > 0)


def failed(results: Mapping[str, Any]) -> bool:
    """Whether a run of a comparison did not finish.

    Args:
        results: of ``run_comparison``.
    """
    return any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"])


if __name__ == "__main__":
    time.perf_counter = time.process_time  # every clock of this process
    sys.exit(main())
