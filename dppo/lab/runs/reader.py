"""Reads the folder of a run, whose files may be damaged or cut off.

A report reads what it can and passes ``notes``, a list that is filled with what was wrong. A comparison must not
compute from half of the records: without ``notes``, damage is a ``FileError``.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import ConfigError, FileError
from dppo.files import read_json
from dppo.lab.files import Damage, read_lines
from dppo.lab.runs.folder import (
    COMPLETIONS_FILE,
    FORMAT,
    METRICS_FILE,
    PHASES,
    PROMPTS_FILE,
    RUN_FILE,
    STATUSES,
    CompletionLine,
    PromptLine,
    RunFacts,
    record_of,
)  # fmt: skip

Log = Mapping[str, Any]
"""A record of ``metrics.jsonl``; its ``step`` is a finite number."""
EITHER = (RUN_FILE, METRICS_FILE)
"""A folder with one of these files is a run."""
_BENCHMARK = re.compile(r"eval/[^/]+/pass@1")


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
    """One training run as read from its folder: the valid facts of ``run.json``, and the other files.

    ``status`` is one of ``STATUSES`` or "unknown", and unknown ``seconds`` are NaN.
    """

    folder: Path
    last: str = ""
    """When ``metrics.jsonl`` was last written to; empty where there is none."""
    seconds: float = math.nan
    logs: tuple[Log, ...] = ()
    completions: tuple[CompletionLine, ...] = ()
    prompts: tuple[PromptLine, ...] = ()
    notes: tuple[str, ...] = ()
    """Faults of the files, one sentence each."""

    def series(self, name: str, over: str = "step") -> Series:
        """The metric ``name`` over updates or a total; of several records of one update the last one counts."""
        points = {log["step"]: (number(log.get(over)), number(log[name])) for log in self.logs if name in log}
        whole = sorted(point for point in points.values() if all(map(math.isfinite, point)))
        x_I, value_I = np.array(whole, dtype=np.float64).reshape(-1, 2).T
        return Series(x_I=x_I, value_I=value_I, left_out=len(points) - len(whole))

    @property
    def benchmarks(self) -> frozenset[str]:
        """Names of what accuracy was measured on."""
        names = {name.split("/")[1] for log in self.logs for name in log if _BENCHMARK.fullmatch(name)}
        return frozenset(names - {"average"})

    @property
    def done(self) -> int:
        """Updates done, according to the logs."""
        return max((int(log["step"]) for log in self.logs), default=0)


def is_run(folder: Path) -> bool:
    """True if a folder holds the records of a run."""
    return any((folder / name).is_file() for name in EITHER)


def read_run(folder: Path) -> RunRecord:
    """The run in a folder, its ``output_dir``, as far as its files can be read."""
    if not is_run(folder):
        raise ConfigError(f"{folder} is no run: it has neither {' nor '.join(EITHER)}.")
    notes: list[str] = []
    facts = read_facts(folder, notes)
    if facts is None:
        notes.append(f"{RUN_FILE} is missing, so method, seed, configuration and task are not known.")
        facts = record_of(RunFacts, {})
    logs = read_logs(folder, notes)
    if not logs:
        notes.append(f"There are no logs: {METRICS_FILE} is missing or has no whole record.")
    metrics = folder / METRICS_FILE
    written = datetime.fromtimestamp(metrics.stat().st_mtime, UTC) if metrics.is_file() else None
    found: dict[str, Any] = {name: str(getattr(facts, name) or "") for name in ("describe", "paper", "started")}
    found |= {name: mapping(getattr(facts, name)) for name in ("task", "config", "environment")}
    found |= {name: each if isinstance(each := getattr(facts, name), int) else None for name in ("seed", "updates")}
    return RunRecord(
        folder=folder,
        format=facts.format if isinstance(facts.format, int) else FORMAT,
        method=str(facts.method or folder.resolve().name),
        status=status_of(facts),
        error=None if facts.error is None else str(facts.error),
        biased=tuple(map(str, sequence(facts.biased))),
        last=f"{written:%Y-%m-%d %H:%M UTC}" if written else "",
        seconds=number(facts.seconds),
        logs=logs,
        completions=tuple(record_of(CompletionLine, line) for line in _records(folder / COMPLETIONS_FILE, notes)),
        prompts=tuple(record_of(PromptLine, line) for line in _records(folder / PROMPTS_FILE, notes)),
        notes=tuple(notes),
        **found,
    )


def status_of(facts: RunFacts) -> str:
    """One of ``STATUSES``, or "unknown" where the run does not say."""
    return facts.status if facts.status in STATUSES else "unknown"


def read_facts(folder: Path, notes: list[str] | None = None) -> RunFacts | None:
    """The facts in ``run.json``; None where there is none."""
    found = read_record(folder / RUN_FILE, notes)
    return None if not found else record_of(RunFacts, found)


def read_record(path: Path, notes: list[str] | None = None) -> Mapping[str, Any]:
    """The object in a JSON file with a ``format``; empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = read_json(path, advice=f"Remove {path.parent} to start again.")
        if number(value.get("format", FORMAT)) != FORMAT or (notes is None and "format" not in value):
            raise FileError(f"{path} has another format than {FORMAT}. Name another --output_dir.")
        return value
    except FileError as error:
        if notes is None:
            raise
        notes.append(f"{path.name} was not read: {error}")
        return {}


def read_logs(folder: Path, notes: list[str] | None = None) -> tuple[Log, ...]:
    """The records of ``metrics.jsonl``; empty where there is no file.

    Left out are a last line that a stop cut off, and records of updates that were done again from a checkpoint.
    """
    kept: list[Log] = []
    for log in _records(folder / METRICS_FILE, notes):
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


def _records(path: Path, notes: list[str] | None) -> list[Log]:
    """The records of a file that have a step."""
    records, wrong, whole = list[Log](), list[Damage](), 0
    for record in read_lines(path, wrong):
        if math.isfinite(number(record.get("step"))):
            records.append(record)
            whole = len(wrong)
        else:
            wrong.append((len(records) + len(wrong) + 1, "it has no step"))
            whole = len(wrong)
    wrong = wrong[: max(whole, len(wrong) - 1)]  # a stop cuts off the last line
    if wrong:
        said = f"line {wrong[0][0]} is damaged ({wrong[0][1]})"
        if notes is None:
            raise FileError(f"{path}: {said}. Train the run again with --overwrite.")
        notes.append(f"{path.name}: {said}; {len(wrong)} left out.")
    return records
