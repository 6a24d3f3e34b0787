"""``dppo demo``: what a changed import gives on the embedded task, against TRL's trainer and a control."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dppo.errors import ConfigError
from dppo.lab.comparison.curves import COMPARISON_FILE, RUNS, STARTS
from dppo.lab.comparison.plan import Comparison, plan
from dppo.lab.comparison.results import paired
from dppo.lab.comparison.table import figures_table, in_two_lines
from dppo.lab.comparison.words import BASELINE_CELL, NO_CELL, Cell, amount, interval, percent, points
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.reader import mapping, read_record
from dppo.lab.statistics import FEWEST, seed_interval

CONFIG = Path(__file__).with_name("demo.yaml")
NARROWEST = 90
"""Columns that the table needs."""
CONTROL, OURS = "grpo", "dppo"
SIDES = {STOCK: "TRL", CONTROL: "GRPO, packed rows", OURS: "DPPO"}
"""The contestants of ``demo.yaml`` in words that a user of TRL knows."""
QUICK_FIELDS = {
    "model_name_or_path": "scratch:embedded_quick",
    "dataset_name": "embedded_quick",
    "eval_benchmarks": "embedded_quick",
    "eval_benchmark_every": "8",
    "eval_benchmark_limit": "96",
    "max_completion_length": "72",
}
TAKEN = {
    "step": "optimizer steps",
    "rollouts": "completions rolled out",
    "rollout_tokens": "their tokens",
    "tokens_trained": "tokens trained on",
}
"""Work of a side in its seconds: fields of ``curves.Point`` and their names."""
SECONDS, QUICK_SECONDS = 30.0, 10.0
"""Seconds of one core that each side trains for."""
MEANING = (
    "TRL: its own GRPOTrainer. GRPO, packed rows: the control, plain GRPO that leaves out completions without a "
    "gradient and packs the others without padding. DPPO: the changed import, with nothing else set. All three "
    "generate with the same small decoder."
)
NOT_SEEN = (
    "Not seen here: a GPU, a large model, generation by vLLM, tuned learning rates. Your own task: "
    "dppo compare CONFIG.yaml --methods trl,grpo,dppo --seeds 5"
)


def demo_comparison(folder: Path, *, seeds: int, quick: bool) -> Comparison:
    """The three sides in that folder, each with the same seconds of one core."""
    changed = {"output_dir": str(folder), **(QUICK_FIELDS if quick else {})}
    flags = [word for name, value in changed.items() for word in (f"--{name}", value)]
    return replace(plan(CONFIG, flags, seeds=seeds), seconds=QUICK_SECONDS if quick else SECONDS)


def clear_earlier(folder: Path) -> None:
    """Remove the runs of an earlier demonstration; those of any other comparison are not to be lost."""
    about = read_record(folder / COMPARISON_FILE)
    if about and (about.get("seconds") is None or mapping(about.get("methods")).keys() != SIDES.keys()):
        raise ConfigError(
            f"--output {folder} holds a comparison that is no demonstration, and its runs would be removed. Try dppo "
            f"demo --output {folder}-demo"
        )
    for part in (RUNS, STARTS):
        shutil.rmtree(folder / part, ignore_errors=True)


def demo_table(results: Mapping[str, Any]) -> Table:
    """A column for each side of ``results.json``: what it reached in equal seconds, and with what; means over seeds."""
    sides = {name: results["methods"][name] for name in SIDES}
    at = results["methods"][OURS]["equal_seconds"]["at"]
    table = figures_table([f"after {at:.0f} seconds of one core" if at else "no side has finished"], SIDES.values())
    table.columns[0].vertical = "top"

    def line(heading: str, cells: Iterable[Cell]) -> None:
        small = len(results["seeds"]) >= FEWEST  # with fewer there is no interval to print
        table.add_row(heading, *(in_two_lines(cell if small else Cell(text=cell.text)) for cell in cells))

    line("accuracy", (interval(side["equal_seconds"]["accuracy"], percent) for side in sides.values()))
    against = (interval(side["equal_seconds"]["difference"], points) for side in sides.values())
    line("against TRL", (BASELINE_CELL if name == STOCK else cell for name, cell in zip(sides, against, strict=True)))
    line("seconds to TRL's accuracy", (interval(side["to_target"]["seconds"], amount) for side in sides.values()))
    for what, heading in TAKEN.items():
        ends = [[run["curve"][-1][what] for run in side["runs"] if run["curve"]] for side in sides.values()]
        line(heading, (Cell(text=amount(round(float(np.mean(each))))) if each else NO_CELL for each in ends))
    return table


def last_words(results: Mapping[str, Any]) -> Iterator[str]:
    """Findings, and limits of the demonstration, one sentence each."""
    yield MEANING
    methods, seeds = results["methods"], len(results["seeds"])
    read = {name: methods[name]["equal_seconds"] for name in SIDES}
    if any(each["accuracy"]["mean"] is None for each in read.values()):
        yield "Nothing can be said: not every side has finished a run."
        return
    said = ", ".join(f"{SIDES[name]} {percent(each['accuracy']['mean'])}" for name, each in read.items())
    yield f"Seen: after {read[OURS]['at']:.0f} seconds of one core from one start, {said} of held-out questions right."
    per_seed = {name: {int(s): v for s, v in each["accuracy"]["per_seed"].items()} for name, each in read.items()}
    for other in (STOCK, CONTROL):
        found = seed_interval(paired(per_seed[OURS], per_seed[other]))
        yield f"DPPO against {SIDES[other]}: {_verdict(found.as_json(), seeds)}"
    yield NOT_SEEN


def _verdict(difference: Mapping[str, Any], asked: int) -> str:
    cell, low, high = interval(difference, points), difference["low"], difference["high"]
    seeds = sum(each is not None for each in difference["per_seed"].values())
    if low is None or high is None:
        advice = "Try dppo demo --seeds 5." if asked < FEWEST else f"{asked - seeds} of {asked} did not finish."
        return f"{cell.text}; {'one seed' if seeds == 1 else f'{seeds} seeds'}: no verdict. {advice}"
    side = "ahead" if low > 0 else "behind" if high < 0 else "no difference is shown"
    return f"{cell.text} (95% interval over {seeds} seeds {cell.detail}): {side}."
