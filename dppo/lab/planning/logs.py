"""Logs of runs in other libraries: verl's console output and JSON lines, TRL's state and console output."""

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import ConfigError, first_line
from dppo.lab.runs.folder import METRICS_FILE

Row = dict[str, float]
NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
"""A printed number of numpy."""
PRINTED = re.compile(r"\{'\w[^{}]*\}")
"""A dictionary, as Python prints it."""
NO_NUMBER = re.compile(r"(?<![\w'])(?:nan|-?inf)\b")
TRAINER_STATE = "trainer_state.json"
WRITES = "Give the console output of verl or TRL, verl's JSON lines, or TRL's trainer_state.json"
NAMES: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "training/global_step", "global_step"),
    # Seconds of generation, log-probabilities of old policy and reference, forward and backward, and the whole step.
    "rollout": ("timing_s/gen", "timing_s/generate_sequences", "time/rollout"),
    "old": ("timing_s/old_log_prob", "time/log_probs"),
    "reference": ("timing_s/ref",),
    "update": ("timing_s/update_actor", "time/forward_backward"),
    "whole": ("timing_s/step", "perf/time_per_step", "step_time"),
    "response": ("response_length/mean", "completions/mean_length", "completion_length"),
    # Of completions the mean reward, the highest and the lowest; then the share of groups of equal rewards.
    "reward": ("critic/score/mean", "candidates/reward", "reward"),
    "highest": ("critic/score/max",),
    "lowest": ("critic/score/min",),
    "flat": ("candidates/zero_variance_groups",),
    "flat_of_trl": ("frac_reward_zero_std",),
    "filtered": ("training/filter_groups/evicted_samples",),
    "pruned": ("prune/kept_share",),
    "advantage": ("critic/advantages/max",),
    # In the loss, or in the reward, where verl has it in the advantages of zero-variance groups too.
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "kl"),
}
"""Metrics of a step by their possible names: the first one in a log counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """A log that was read."""

    name: str
    """The file."""
    steps: tuple[Row, ...]
    """Metrics of each step of training by the keys of ``NAMES``, in order; NaN if the log has none. A step that trains
    once more on a rollout adds its seconds to the one that made it."""

    def known(self, name: str) -> list[float]:
        """The finite values of a metric."""
        return [each[name] for each in self.steps if math.isfinite(each[name])]

    def mean(self, name: str, otherwise: float = math.nan) -> float:
        """Their mean, or ``otherwise`` without one."""
        return float(np.mean(self.known(name) or [otherwise]))


def read_log(path: Path) -> RunLog:
    """A log in any of the formats above, or the one in a folder of a run or checkpoint.

    Raises:
        ConfigError: there is no such file, or it has fewer than 2 steps of training.
    """
    checkpoints = [each for each in path.glob("checkpoint-*") if each.name.partition("-")[2].isdecimal()]
    newest = sorted(checkpoints, key=lambda each: -int(each.name.partition("-")[2]))
    inside = [path / TRAINER_STATE, path / METRICS_FILE, *(each / TRAINER_STATE for each in newest)]
    file = next((each for each in inside if each.is_file()), path)
    try:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise ConfigError(f"--log {path} cannot be read: {first_line(error)} {WRITES}.") from error
    log = RunLog(name=file.name, steps=step_metrics(_rows(text)))
    if log.known("pruned"):
        raise ConfigError(
            f"--log {path} is of a run that prunes already. Its saved/share is what that saves; plan it anew from its "
            "records, dppo plan CONFIG.yaml --run FOLDER"
        )
    if len(log.steps) < 2:
        raise ConfigError(f"--log {path} has {len(log.steps)} steps of training; 2 are needed. {WRITES}.")
    return log


def step_metrics(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The steps of training in some rows, in order; rows of one step are merged."""
    by_step: dict[float, Row] = {}
    for place, row in enumerate(rows):
        step = _first(row, NAMES["step"])
        by_step.setdefault(place if math.isnan(step) else step, {}).update(row)
    steps: list[Row] = []
    for _, row in sorted(by_step.items()):
        found = {name: _first(row, names) for name, names in NAMES.items()}
        if not math.isnan(found["reward"] + found["response"]):
            steps.append(found)
        elif steps:
            seconds = ("rollout", "old", "reference", "update", "whole")
            more = (name for name in seconds if math.isfinite(found[name]))
            steps[-1] |= {name: float(np.nansum([steps[-1][name], found[name]])) for name in more}
    return tuple(steps)


def _first(row: Row, names: Sequence[str]) -> float:
    return next((row[name] for name in names if name in row), math.nan)


def _rows(text: str) -> Iterator[Row]:
    """Numbers of each record in a log: TRL's state, JSON lines, or dictionaries and verl's lines of a console."""
    with suppress(ValueError, RecursionError):
        state = json.loads(text)
        if isinstance(state, dict) and isinstance(state.get("log_history"), list):
            yield from (_numbers(each) for each in state["log_history"])
            return
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):  # verl's file logger has figures under ``data``
                data = record.get("data")
                yield _numbers({**record, **(data if isinstance(data, dict) else {})})
            continue
        for printed in PRINTED.findall(line):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                yield _numbers(ast.literal_eval(NO_NUMBER.sub("None", NUMPY.sub(r"\1", printed))))
        at = line.find("step:")
        if at >= 0 and " - " in line[at:]:  # step:3 - name:value - ...
            parts = (part.rpartition(":") for part in line[at:].split(" - "))
            yield _numbers({name.strip(): NUMPY.sub(r"\1", value) for name, _, value in parts})


def _numbers(record: Any) -> Row:
    """The finite numbers of a record, those written as text included."""
    found = {}
    for name, value in record.items() if isinstance(record, dict) else ():
        with suppress(TypeError, ValueError, OverflowError):
            found[str(name)] = float(value)
    return {name: value for name, value in found.items() if math.isfinite(value)}
