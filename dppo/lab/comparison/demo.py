"""``dppo demo``: what a changed import gives on the embedded task, against TRL's trainer and a control."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dppo.errors import ConfigError, duration
from dppo.lab.comparison.curves import COMPARISON_FILE, RUNS, STARTS
from dppo.lab.comparison.plan import Comparison, plan
from dppo.lab.comparison.results import paired
from dppo.lab.comparison.table import figures_table, in_two_lines
from dppo.lab.comparison.words import BASELINE_CELL, NO_CELL, Cell, amount, interval, percent, points
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.reader import mapping, read_record
from dppo.lab.shipped import EXAMPLES
from dppo.lab.statistics import FEWEST, seed_interval

CONFIG = Path(__file__).with_name("demo.yaml")
CHAT_MODEL = EXAMPLES / "smollm2" / "train.yaml"
"""The configuration for a chat model, which learns sums."""
NARROWEST = 90
CONTROL, OURS = "grpo", "dppo"
SIDES = (STOCK, CONTROL, OURS)
TAKEN = {
    "step": "optimizer steps",
    "rollouts": "completions rolled out",
    "rollout_tokens": "their tokens",
    "tokens_trained": "tokens trained on",
}
"""Work of a side in its seconds: fields of ``curves.Point`` and their names."""
SECONDS, MODEL_SECONDS = 10.0, 300.0
"""Seconds of one core that each side trains for: the built-in model, and one of the user's own."""
BESIDE, MODEL_BESIDE = 50.0, 360.0
"""Seconds of a seed that loading, the warm start and evaluations take beside them, on a core with AVX2."""
MEANING = (
    "trl: TRL's own GRPOTrainer. grpo: the control, plain GRPO that leaves out completions without a gradient and "
    "packs the others without padding. dppo: the changed import, with nothing else set. All generate in the same way."
)
WITHOUT_KL = (
    "Without a KL term dppo and grpo are about equally fast: the gain over TRL is skipping and packing, which grpo has "
    "too."
)
NOT_SEEN = (
    "Not seen here: a GPU, a large model, generation by vLLM, tuned learning rates. Your own task: "
    "dppo compare CONFIG.yaml --methods trl,grpo,dppo --seeds 5"
)


def demo_comparison(folder: Path, *, seeds: int = 1, kl: bool = True, model: str | None = None) -> Comparison:
    """The three sides in that folder, each with the same seconds of one core, with a KL term or without.

    ``model`` is the folder or the name of a chat model; None for the built-in one.
    """
    flags = ["--output_dir", str(folder), "--beta", "0.04" if kl else "0.0"]
    if model is None:
        return plan(CONFIG, flags, seeds=seeds, seconds=SECONDS)
    flags += ["--model_name_or_path", model, "--max_steps", "1000"]
    return plan(CHAT_MODEL, flags, methods=list(SIDES), seeds=seeds, seconds=MODEL_SECONDS)


def first_words(comparison: Comparison) -> str:
    """A sentence about what is trained, and for how long."""
    assert comparison.seconds is not None
    beside = BESIDE if comparison.scratch else MODEL_BESIDE
    whole = len(comparison.order()) * comparison.seconds + len(comparison.seeds) * beside
    sides = f"{', '.join(SIDES[:-1])} and {SIDES[-1]}"
    return (
        f"{sides} train for {comparison.seconds:.0f} seconds of one core each, {len(comparison.seeds)} seed(s): about "
        f"{duration(whole)} with evaluations."
    )


def clear_earlier(folder: Path) -> None:
    """Remove the runs of an earlier demonstration; those of any other comparison are not to be lost."""
    about = read_record(folder / COMPARISON_FILE)
    if about and (about.get("seconds") is None or tuple(mapping(about.get("methods"))) != SIDES):
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
    table = figures_table([f"after {at:.0f} seconds of one core" if at else "no side has finished"], SIDES)
    table.columns[0].vertical = "top"

    def line(heading: str, cells: Iterable[Cell]) -> None:
        small = len(results["seeds"]) >= FEWEST  # with fewer there is no interval to print
        table.add_row(heading, *(in_two_lines(cell if small else Cell(text=cell.text)) for cell in cells))

    line("accuracy", (interval(side["equal_seconds"]["accuracy"], percent) for side in sides.values()))
    against = {name: interval(side["equal_seconds"]["difference"], points) for name, side in sides.items()}
    line(f"against {STOCK}", (against | {STOCK: BASELINE_CELL}).values())
    line(f"seconds to {STOCK}'s accuracy", (interval(side["to_target"]["seconds"], amount) for side in sides.values()))
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
    said = ", ".join(f"{name} {percent(each['accuracy']['mean'])}" for name, each in read.items())
    yield f"Seen: after {read[OURS]['at']:.0f} seconds of one core from one start, {said} of held-out questions right."
    per_seed = {name: {int(s): v for s, v in each["accuracy"]["per_seed"].items()} for name, each in read.items()}
    for other in (STOCK, CONTROL):
        found = seed_interval(paired(per_seed[OURS], per_seed[other]))
        yield f"{OURS} against {other}: {_verdict(found.as_json(), seeds)}"
    yield NOT_SEEN


def _verdict(difference: Mapping[str, Any], asked: int) -> str:
    cell, low, high = interval(difference, points), difference["low"], difference["high"]
    seeds = sum(each is not None for each in difference["per_seed"].values())
    if low is None or high is None:
        advice = "Try dppo demo --seeds 5." if asked < FEWEST else f"{asked - seeds} of {asked} did not finish."
        return f"{cell.text}; {'one seed' if seeds == 1 else f'{seeds} seeds'}: no verdict. {advice}"
    side = "ahead" if low > 0 else "behind" if high < 0 else "no difference is shown"
    return f"{cell.text} (95% interval over {seeds} seeds {cell.detail}): {side}."
