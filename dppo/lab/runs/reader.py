"""Reads the folder of a run. A line that a stop cut off is left out, and any other damage is a ``FileError``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import ConfigError, FileError
from dppo.files import read_json
from dppo.lab.files import read_lines
from dppo.lab.runs.folder import FORMAT, METRICS_FILE, PHASES, PROMPTS_FILE, RUN_FILE, PromptLine, RunFacts

Log = Mapping[str, Any]
"""A record of ``metrics.jsonl``; its ``step`` is a finite number."""
EITHER = (RUN_FILE, METRICS_FILE)
"""A folder with one of these files is a run."""


def number(value: object) -> float:
    """``value`` as a float where it is a number, else NaN."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> Sequence[Any]:
    """``value`` where it is a JSON list, else an empty one."""
    return value if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One figure of one run, over its updates or a total."""

    x_I: np.ndarray
    """(I,) finite, ascending: optimizer updates done, or the total so far."""
    value_I: np.ndarray
    """(I,) finite values."""
    left_out: int
    """Records without a finite value or place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord(RunFacts):
    """One training run as read from its folder: ``run.json`` and the other files."""

    folder: Path
    logs: tuple[Log, ...] = ()
    prompts: tuple[PromptLine, ...] = ()

    def series(self, name: str, over: str = "step") -> Series:
        """The metric ``name`` over updates or a total; of several records of one update the last one counts."""
        points = {log["step"]: (number(log.get(over)), number(log[name])) for log in self.logs if name in log}
        whole = sorted(point for point in points.values() if all(map(math.isfinite, point)))
        x_I, value_I = np.array(whole, dtype=np.float64).reshape(-1, 2).T
        return Series(x_I=x_I, value_I=value_I, left_out=len(points) - len(whole))


def is_run(folder: Path) -> bool:
    """True if a folder holds the records of a run."""
    return any((folder / name).is_file() for name in EITHER)


def read_run(folder: Path) -> RunRecord:
    """The run in a folder, its ``output_dir``; ``FileError`` if a file is damaged."""
    if not is_run(folder):
        raise ConfigError(f"{folder} is no run: it has neither {' nor '.join(EITHER)}.")
    facts = read_facts(folder) or RunFacts(method=folder.resolve().name, status="unknown")
    prompts = (PromptLine(**line) for line in read_lines(folder / PROMPTS_FILE))
    known = {each.name: getattr(facts, each.name) for each in fields(RunFacts)}
    try:
        return RunRecord(**known, folder=folder, logs=read_logs(folder), prompts=tuple(prompts))
    except TypeError as error:
        raise FileError(
            f"{folder / PROMPTS_FILE} is of another version ({error}). Remove it, or train anew."
        ) from error


def read_facts(folder: Path) -> RunFacts | None:
    """The facts in ``run.json``; None without one."""
    found = read_record(folder / RUN_FILE)
    try:
        return RunFacts(**found) if found else None
    except TypeError as error:
        raise FileError(f"{folder / RUN_FILE} is of another version ({error}). Train the run again.") from error


def read_record(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file with a ``format``; empty without a file."""
    if not path.is_file():
        return {}
    value = read_json(path, advice=f"Remove {path.parent} to start again.")
    if value.get("format") != FORMAT:
        raise FileError(f"{path} has another format than {FORMAT}. Name another --output_dir.")
    return value


def read_logs(folder: Path) -> tuple[Log, ...]:
    """The records of ``metrics.jsonl``, without updates done again from a checkpoint; empty without a file."""
    kept: list[Log] = []
    for log in read_lines(folder / METRICS_FILE):
        if kept and log["step"] < kept[-1]["step"]:
            kept = [other for other in kept if other["step"] < log["step"]]
        kept.append(log)
    return tuple(kept)


def phases_of(logs: Iterable[Log]) -> dict[str, float]:
    """Seconds of the whole run, by phase."""
    seconds: dict[str, float] = {}
    before = 0
    for log in logs:
        parts = {name.removeprefix(PHASES): number(log[name]) for name in log if name.startswith(PHASES)}
        for phase, mean in parts.items():
            seconds[phase] = seconds.get(phase, 0.0) + (log["step"] - before) * (mean if math.isfinite(mean) else 0.0)
        before = log["step"] if parts else before
    return seconds
