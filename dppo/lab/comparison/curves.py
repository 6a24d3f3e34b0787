"""Files of a comparison, and accuracy of one run over steps, seconds, rollouts and tokens, read between evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from dppo.errors import FileError
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import Log

COMPARISON_FILE = "comparison.json"
"""Contestants, seeds and fields."""
RESULTS_FILE = "results.json"
"""Results of the runs, written anew after each."""
CONFIG_FILE = "config.yaml"
"""Of a run: every field it was made with."""
RUNS, STARTS = "runs", "starts"
"""Folders of runs, ``runs/CONTESTANT/seed_N``, and of the models that all runs of a seed start from."""

Over = Literal["step", "seconds", "rollouts", "rollout_tokens", "tokens_trained"]
"""Amounts that a curve can be read over."""
AMOUNTS: tuple[Over, ...] = ("seconds", "rollouts", "rollout_tokens", "tokens_trained")
"""Amounts that a run spends."""
READOUTS: dict[str, Over] = {"equal_updates": "step", "equal_rollouts": "rollouts", "equal_seconds": "seconds"}
"""Comparisons of accuracy: by name in ``results.json``, the amount that is the same for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One evaluation of a run, and what the run had cost by then."""

    step: float
    seconds: float
    """Of training: evaluations and checkpoints do not count."""
    rollouts: float
    """Completions generated."""
    rollout_tokens: float
    """Their tokens."""
    tokens_trained: float
    """Completion tokens that went through the model with a gradient."""
    accuracy: float
    """In [0, 1]."""


Curve = Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Amount that a run spent until its curve first reached a target, or in all if it never did."""

    amount: float
    """In the unit of what is counted (seconds, completions, tokens), >= 0."""
    reached: bool
    """False: censored, the run ended at ``amount``."""


def curve_of(records: Sequence[Log]) -> list[Point]:
    """The evaluations among the records of ``read_logs``, in order of their steps, the last of each step."""
    found: dict[float, Point] = {}
    for record in records:
        if record.get(ACCURACY) is None:
            continue
        missing = [TOTALS[part] for part in AMOUNTS if record.get(TOTALS[part]) is None]
        if missing:
            raise FileError(f"the evaluation at step {record['step']} has no {missing[0]}. Train it with --overwrite.")
        totals = {part: float(record[TOTALS[part]]) for part in AMOUNTS}
        found[record["step"]] = Point(step=record["step"], accuracy=float(record[ACCURACY]), **totals)
    return [found[step] for step in sorted(found)]


def accuracy_at(curve: Curve, place: float, over: Over) -> float | None:
    """Accuracy at ``place``, an amount of ``over``, on straight lines between evaluations; None beyond the ends."""
    for before, after in pairwise(curve):
        left, right = getattr(before, over), getattr(after, over)
        if left <= place <= right:
            part = (place - left) / (right - left) if right > left else 1.0
            return before.accuracy + part * (after.accuracy - before.accuracy)
    only = [point.accuracy for point in curve if getattr(point, over) == place]
    return only[-1] if only else None


def reach(curve: Curve, target: float, over: Over) -> Reach | None:
    """Amount of ``over`` that a run spent until it first reached an accuracy, on straight lines, or in all.

    None where there is nothing to reach: no evaluation, or the first one is at the target already.
    """
    if not curve or curve[0].accuracy >= target:
        return None
    for before, after in pairwise(curve):
        if after.accuracy >= target:
            part = (target - before.accuracy) / (after.accuracy - before.accuracy)
            amount = getattr(before, over) + part * (getattr(after, over) - getattr(before, over))
            return Reach(amount=amount, reached=True)
    return Reach(amount=getattr(curve[-1], over), reached=False)
