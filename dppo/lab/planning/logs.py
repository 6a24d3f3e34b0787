"""Logs that a run of another library left: verl's console or JSON, TRL's state, exports of wandb.

Every reader gives names and numbers of each logged step; ``step_figures`` finds in them what a plan needs.
"""

import ast
import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import ConfigError, first_line
from dppo.lab.runs.folder import METRICS_FILE

Row = dict[str, float]
NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
"""How numpy's numbers are printed."""
PRINTED = re.compile(r"\{'\w[^{}]*\}")
"""A dictionary, as Python prints it."""
NO_NUMBER = re.compile(r"(?<![\w'])(?:nan|-?inf)\b")
PREFIXES = ("train/", "train_")
TRAINER_STATE = "trainer_state.json"
WRITES = (
    "Give the console output of verl or TRL, verl's JSON lines, TRL's trainer_state.json, or wandb's CSV or JSON export"
)

NAMES: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "training/global_step", "_step", "global_step", "Step"),
    # Seconds: of making completions, of log-probabilities of the old policy and of the reference, of forward and
    # backward, with the optimizer where it is not apart, of rewards, of weights handed to vLLM, and of the whole step.
    "rollout": (
        "timing_s/gen",
        "timing_s/generate_sequences",
        "time/rollout",
        "vLLM.generate",
        "transformers.generate",
        "transformers.generate_batch",
    ),
    "old": ("timing_s/old_log_prob", "time/log_probs"),
    "reference": ("timing_s/ref",),
    "update": ("timing_s/update_actor", "time/forward_backward"),
    "rewards": ("timing_s/reward", "time/reward", "_calculate_rewards"),
    "handed": ("sync_weights",),
    "whole": ("timing_s/step", "perf/time_per_step", "step_time"),
    # Mean tokens of a completion and of a prompt.
    "response": ("response_length/mean", "completions/mean_length", "completion_length"),
    "prompt": ("prompt_length/mean",),
    # Of completions the mean reward, the highest and the lowest; then the share of groups of equal rewards.
    "reward": ("critic/score/mean", "candidates/reward", "reward"),
    "highest": ("critic/score/max",),
    "lowest": ("critic/score/min",),
    "flat": ("candidates/zero_variance_groups",),
    "flat_of_trl": ("frac_reward_zero_std",),
    "filtered": ("training/filter_groups/evicted_samples",),
    "pruned": ("prune/kept_share",),
    "advantage": ("critic/advantages/max",),
    # In the loss, or in the reward, where verl has it in the advantages of silent groups too.
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "kl"),
}
"""Figures of a step by the names that they may have: the first that is there."""
OF_TRAINING = ("training/global_step", "global_step", "step")
"""Names of the step of training; a logger counts rows under other names."""
SECONDS = ("rollout", "old", "reference", "update", "rewards", "handed", "whole")
"""Those of them that steps on one rollout have together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """A log that was read."""

    kind: str
    """The format, in words."""
    steps: tuple[Row, ...]
    """By the names of ``NAMES`` the figures of each step of training, in order; NaN where the log does not say. A step
    that trains once more on a rollout adds its seconds to the one that made it."""


def finite(steps: Iterable[Row], name: str) -> list[float]:
    """The finite values of a figure in some steps."""
    return [each[name] for each in steps if math.isfinite(each[name])]


def read_log(path: Path) -> RunLog:
    """A log in any of the formats above, told by what it holds.

    Raises:
        ConfigError: there is no such file, or nothing in it is a step of training.
    """
    if not path.exists():
        raise ConfigError(f"--log {path}: there is no such file. {WRITES}.")
    try:
        kind, rows = _read(path)
    except OSError as error:
        raise ConfigError(f"--log {path} cannot be read: {first_line(error)} {WRITES}.") from error
    steps = step_figures(rows)
    if finite(steps, "pruned"):
        raise ConfigError(
            f"--log {path} is of a run that prunes already. Its saved/share is what that saves; plan it anew from its "
            "records, dppo plan CONFIG.yaml --run FOLDER"
        )
    if len(steps) < 2:
        raise ConfigError(
            f"--log {path}: read as {kind}, and it has {len(steps)} steps of training; 2 are needed. {WRITES}."
        )
    return RunLog(kind=kind, steps=steps)


def step_figures(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The steps of training in some rows, in order; figures of one step in several rows are put together.

    Where every tenth step is logged, TRL's profiler still logs each call, in rows without a step of training: the
    seconds of ten steps in sum.
    """
    by_step: dict[float, Row] = {}
    for place, row in enumerate(rows):
        plain = {_plain(name): value for name, value in row.items()}
        step = _first(plain, NAMES["step"])
        by_step.setdefault(place if math.isnan(step) else step, {}).update(plain)
    ordered = [row for _, row in sorted(by_step.items())]
    figures = [{name: _first(row, names) for name, names in NAMES.items()} for row in ordered]
    if not finite(figures, "flat") and any(finite(figures, "flat_of_trl")):
        # Where it is 0 in every step it may say nothing: so it is with scale_rewards: batch, whatever the groups hold.
        figures = [found | {"flat": found["flat_of_trl"]} for found in figures]
    if not finite(figures, "flat") and finite(figures, "filtered"):  # verl replaces silent groups by others
        figures = [found | {"flat": 0.0} for found in figures]
    numbers = [_first(row, OF_TRAINING) for row in ordered]
    logged = [not math.isnan(found["reward"] + found["response"]) for found in figures]
    between = [gap for gap in np.diff(np.array(numbers)[logged]) if gap > 0]
    every = float(np.median(between)) if between else 1.0
    steps: list[Row] = []
    for found, number, has_figures in zip(figures, numbers, logged, strict=True):
        if has_figures:
            steps.append(found)
        elif steps:
            told = (name for name in SECONDS if math.isfinite(found[name]))
            share = every if math.isnan(number) else 1.0
            steps[-1] |= {name: float(np.nansum([steps[-1][name], found[name] / share])) for name in told}
    return tuple(steps)


def _plain(name: str) -> str:
    """A name without what a logger puts before it: ``train/``, ``profiling/Time taken: GRPOTrainer.``."""
    name = name.rsplit(" - ", 1)[-1] if " - " in name else name  # wandb's CSV: run name - metric
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return re.sub(r"^profiling/Time taken: \w+\.", "", name)


def _first(row: Row, names: Sequence[str]) -> float:
    return next((row[name] for name in names if name in row and math.isfinite(row[name])), math.nan)


# -- formats ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[str, Iterable[Row]]:
    numbered = [each for each in path.glob("checkpoint-*") if each.name.partition("-")[2].isdecimal()]
    checkpoints = sorted(numbered, key=lambda each: -int(each.name.partition("-")[2]))
    inside = [path / TRAINER_STATE, path / METRICS_FILE, *(each / TRAINER_STATE for each in checkpoints)]
    if found := next((each for each in inside if each.is_file()), None):  # a run of TRL's or ours, or its checkpoint
        return _read(found)
    if path.is_dir() or "tfevents" in path.name:
        raise ConfigError(f"--log {path}: files of TensorBoard are not read. {WRITES}.")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix == ".csv":
        return "a CSV export", _csv(text, path)
    try:
        read = json.loads(text)
        history = read["log_history"] if isinstance(read, dict) and "log_history" in read else read
        kind = "TRL's state" if history is not read else "JSON"
        rows = history if isinstance(history, list) else [history]
        return kind, [_numbers(each) for each in rows if isinstance(each, dict)]
    except (ValueError, RecursionError):
        pass
    lines = [found for line in text.splitlines() if (found := _json_line(line)) is not None]
    printed = list(_console(text))
    more = len(step_figures(lines)) >= len(step_figures(printed))  # a console may print a line of JSON
    return ("JSON lines", lines) if lines and more else ("a console's output", printed)


def _csv(text: str, path: Path) -> list[Row]:
    """Figures of an export; wandb writes those of several runs side by side, as ``run name - metric``."""
    csv.field_size_limit(max(len(text), 131_072))  # a cell may hold a completion
    table = csv.DictReader(text.splitlines())
    runs = {name.rsplit(" - ", 1)[0]: None for name in table.fieldnames or () if " - " in name}
    if len(runs) > 1:
        raise ConfigError(
            f"--log {path} has columns of {len(runs)} runs ({', '.join([*runs][:3])}), which would be read as one. "
            "Export one run."
        )
    return [_numbers(row) for row in table]


def _json_line(line: str) -> Row | None:
    """Figures of a line that is a JSON object; verl's file logger has them under ``data``."""
    if not line.startswith("{"):
        return None
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        return None
    data = read.get("data")
    return _numbers({**read, **data} if isinstance(data, dict) else read)


def _console(text: str) -> Iterable[Row]:
    """Figures of verl's lines, ``step:3 - name:value - ...``, which may begin with who prints them, and of TRL's.

    TRL prints a dictionary as Python does, behind a progress bar it may be.
    """
    for line in text.splitlines():
        for printed in PRINTED.findall(line):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                read = ast.literal_eval(NO_NUMBER.sub("None", NUMPY.sub(r"\1", printed)))
                yield _numbers(read if isinstance(read, dict) else {})
        at = line.find("step:")
        if at >= 0 and " - " in line[at:]:
            parts = (part.rpartition(":") for part in line[at:].split(" - "))
            yield _numbers({name.strip(): NUMPY.sub(r"\1", value) for name, _, value in parts})


def _numbers(row: Mapping[str, Any]) -> Row:
    """The finite numbers of a record, those written as text included."""
    found = {}
    for name, value in row.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(number) and name is not None:
            found[str(name)] = number
    return found
