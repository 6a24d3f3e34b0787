"""Accuracy of one run over steps, seconds, rollouts and tokens, read from its logs and read off between its points."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from dppo.errors import EvaluationError

ACCURACY = "eval/average/pass@1"
Over = Literal["step", "seconds", "rollouts", "tokens_trained"]
"""What a curve can be read over."""
TOTALS: dict[str, str] = {
    "seconds": "total/seconds",
    "rollouts": "total/rollouts",
    "tokens_trained": "total/tokens_trained",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation of a run, and what the run had cost by then."""

    step: float
    seconds: float
    """Of training: evaluations and checkpoints do not count."""
    rollouts: float
    """Completions generated."""
    tokens_trained: float
    """Completion tokens that went through the model with a gradient."""
    accuracy: float
    """In [0, 1]."""


Curve = Sequence[Point]


def read_logs(path: Path) -> list[dict[str, Any]]:
    """The records of ``metrics.jsonl`` as the run that was finished made them.

    Records of steps that a stopped run repeated after its last checkpoint are left out, and so is a last line that a
    stop cut off.

    Raises:
        EvaluationError: the file is missing, or damaged before its last line.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read ({error}). Train the run again with --overwrite.") from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            step = record["step"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise EvaluationError(
                f"{path}: line {number} is damaged ({error}). Train the run again with --overwrite."
            ) from error
        while records and records[-1]["step"] > step:
            records.pop()
        records.append(record)
    return records


def curve_of(records: Sequence[dict[str, Any]]) -> list[Point]:
    """The evaluations among the records, in order of their steps, the last of each step.

    Args:
        records: from ``read_logs``.

    Raises:
        EvaluationError: an evaluation without the totals so far.
    """
    found: dict[float, Point] = {}
    for record in records:
        if record.get(ACCURACY) is None:
            continue
        missing = [name for name in TOTALS.values() if record.get(name) is None]
        if missing:
            raise EvaluationError(
                f"the evaluation at step {record['step']} has no {missing[0]}: the run was made by an older version. "
                "Train it again with --overwrite."
            )
        totals = {part: float(record[name]) for part, name in TOTALS.items()}
        found[record["step"]] = Point(step=record["step"], accuracy=float(record[ACCURACY]), **totals)
    return [found[step] for step in sorted(found)]


def phases_of(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the whole run by phase; a log's ``time/*`` are means over the steps since the log before.

    Args:
        records: from ``read_logs``.
    """
    seconds: dict[str, float] = {}
    before = 0
    for record in records:
        parts = {name.removeprefix("time/"): value for name, value in record.items() if name.startswith("time/")}
        if not parts:
            continue
        for phase, value in parts.items():
            seconds[phase] = seconds.get(phase, 0.0) + (value or 0.0) * (record["step"] - before)
        before = record["step"]
    return seconds


def accuracy_at(curve: Curve, over: Over, place: float) -> float | None:
    """Accuracy at ``place`` on straight lines between evaluations; None beyond the ends of the curve.

    Args:
        curve: of one run.
        over: what ``place`` is a number of.
        place: within what the run reached.
    """
    for before, after in pairwise(curve):
        left, right = getattr(before, over), getattr(after, over)
        if left <= place <= right:
            part = (place - left) / (right - left) if right > left else 1.0
            return before.accuracy + part * (after.accuracy - before.accuracy)
    only = [point.accuracy for point in curve if getattr(point, over) == place]
    return only[-1] if only else None


def reach(curve: Curve, over: Over) -> float:
    """How far the run went, as a number of ``over``."""
    return getattr(curve[-1], over)


def amount_to(curve: Curve, target: float, over: Over) -> float:
    """How much of ``over`` the run took to first reach ``target``, on straight lines; inf where it never did.

    Args:
        curve: of one run.
        target: accuracy, in [0, 1].
        over: seconds, rollouts, tokens or steps.
    """
    if curve and curve[0].accuracy >= target:
        return float(getattr(curve[0], over))
    for before, after in pairwise(curve):
        if after.accuracy >= target:
            part = (target - before.accuracy) / (after.accuracy - before.accuracy)
            return getattr(before, over) + part * (getattr(after, over) - getattr(before, over))
    return math.inf
