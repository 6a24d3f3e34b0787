"""``results.json``: what the runs of a comparison reached, read from their own files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dppo.comparison.contestants import STOCK, STOCK_PAPER, Contestant
from dppo.comparison.curves import Over, Point, accuracy_at, amount_to, curve_of, phases_of, reach, read_logs
from dppo.comparison.plan import FORMAT, RUN_FILE, Comparison, read_record
from dppo.environment import environment
from dppo.errors import DPPOError
from dppo.methods import METHODS
from dppo.statistics import seed_interval

READOUTS: dict[str, Over] = {"equal_updates": "step", "equal_rollouts": "rollouts", "equal_seconds": "seconds"}
AMOUNTS: tuple[Over, ...] = ("seconds", "rollouts", "tokens_trained")
STOPPED = "KeyboardInterrupt"
"""How the error of a run begins that was stopped and will go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run as its files tell it."""

    seed: int
    status: str
    """``finished``, ``failed``, ``running`` (also one that was stopped) or ``missing``."""
    error: str | None
    record: Mapping[str, Any]
    """Its ``run.json``."""
    curve: tuple[Point, ...]
    phases: Mapping[str, float]

    @property
    def finished(self) -> bool:
        """Whether its curve counts."""
        return self.status == "finished"

    def as_json(self) -> dict[str, Any]:
        """The record of ``results.json``."""
        names = ("step", "seconds", "rollouts", "tokens_trained", "accuracy")
        return {
            "seed": self.seed,
            "status": self.status,
            "error": self.error,
            "curve": [{name: getattr(point, name) for name in names} for point in self.curve],
            "phases": dict(self.phases),
        }


Outcomes = Mapping[int, Outcome]
"""Of one contestant, by seed."""


def outcome_of(comparison: Comparison, contestant: Contestant, seed: int) -> Outcome:
    """What a run's files say; a run whose figures cannot be read counts as failed, with the reason."""
    folder = comparison.run_folder(contestant, seed)
    nothing: dict[str, Any] = {"seed": seed, "record": {}, "curve": (), "phases": {}}
    if not (folder / RUN_FILE).exists():
        return Outcome(status="missing", error=None, **nothing)
    try:
        record = read_record(folder / RUN_FILE)
        logs = read_logs(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        curve, phases = tuple(curve_of(logs)), phases_of(logs)
        status, error = str(record.get("status")), record.get("error")
    except DPPOError as problem:
        return Outcome(status="failed", error=str(problem), **nothing)
    if status == "failed" and str(error).startswith(STOPPED):
        status, error = "running", None
    if status == "finished" and not curve:
        status, error = "failed", "it logged no accuracy: eval_benchmarks gave no figures"
    updates = record.get("updates")
    if status == "finished" and curve and updates and curve[-1].step < updates:
        status, error = "failed", f"its last evaluation is of step {curve[-1].step:g} of {updates}"
    return Outcome(seed=seed, status=status, error=error, record=record, curve=curve, phases=phases)


def summarise(comparison: Comparison) -> dict[str, Any]:
    """Everything that ``results.json`` holds.

    Args:
        comparison: whose runs are read; those that have not finished are listed as what they are.
    """
    outcomes = {
        each.name: {seed: outcome_of(comparison, each, seed) for seed in comparison.seeds}
        for each in comparison.contestants
    }
    baseline = comparison.baseline
    targets = target_per_seed(comparison, outcomes[baseline])
    own = targets_text(comparison)
    places = {what: common_reach(outcomes, over) for what, over in READOUTS.items()}
    amounts = {over: {name: amounts_to(found, targets, over) for name, found in outcomes.items()} for over in AMOUNTS}
    methods = {}
    for each in comparison.contestants:
        found = outcomes[each.name]
        methods[each.name] = {
            **_about(each, found, comparison),
            "runs": [outcome.as_json() for outcome in found.values()],
            "final": seed_interval(final(found)).as_json(),
            **{what: read_out(outcomes, each.name, baseline, over, places[what]) for what, over in READOUTS.items()},
            "to_target": {
                **{over: seed_interval(amounts[over][each.name], np.median).as_json("median") for over in AMOUNTS},
                "reached": _reached(amounts["seconds"][each.name]),
            },
        }
    key = "time_to_trl_final" if baseline == STOCK and comparison.target is None else "time_to_target"
    return {
        "format": FORMAT,
        "task": _task(comparison, outcomes),
        "environment": environment(),
        "seeds": list(comparison.seeds),
        "baseline": baseline,
        "target": {"what": own, "per_seed": {str(seed): value for seed, value in targets.items()}},
        "methods": methods,
        "speedup": {
            name: {key: seed_interval(speedups(amounts["seconds"], name, baseline), np.median).as_json("median")}
            for name in outcomes
        },
    }


def _about(contestant: Contestant, outcomes: Outcomes, comparison: Comparison) -> dict[str, Any]:
    """Which method it is, as its runs say, and what of the shared fields it was not given."""
    record = next((outcome.record for outcome in outcomes.values() if "biased" in outcome.record), {})
    paper = STOCK_PAPER if contestant.stock else METHODS[contestant.method].paper
    return {
        "method": contestant.method,
        "overrides": dict(contestant.overrides),
        "left_out": contestant.left_out(comparison.config),
        "paper": record.get("paper", paper),
        "biased": list(record.get("biased", ())),
        "finished": f"{sum(outcome.finished for outcome in outcomes.values())} of {len(outcomes)}",
    }


def _task(comparison: Comparison, outcomes: Mapping[str, Outcomes]) -> dict[str, Any]:
    """Model and data as the configuration calls them, and how many prompts the runs found."""
    found = (outcome.record.get("task") for each in outcomes.values() for outcome in each.values())
    config = comparison.config
    return {
        "model": config.get("model_name_or_path"),
        "dataset": config.get("dataset_path") or config.get("dataset_name"),
        "prompts": next((task.get("prompts") for task in found if task), None),
        "benchmarks": config.get("eval_benchmarks"),
    }


def targets_text(comparison: Comparison) -> str:
    """What the target is, in words."""
    if comparison.target is not None:
        return f"accuracy {comparison.target:g}"
    return f"final accuracy of {comparison.baseline}, same seed"


def target_per_seed(comparison: Comparison, baseline: Outcomes) -> dict[int, float | None]:
    """The accuracy whose time is measured, by seed; None where the baseline did not finish."""
    if comparison.target is not None:
        return dict.fromkeys(comparison.seeds, comparison.target)
    return final(baseline)


def final(outcomes: Outcomes) -> dict[int, float | None]:
    """The last accuracy of each seed; None where the run did not finish."""
    return {seed: outcome.curve[-1].accuracy if outcome.finished else None for seed, outcome in outcomes.items()}


def common_reach(outcomes: Mapping[str, Outcomes], over: Over) -> dict[int, float | None]:
    """How far all finished runs of a seed went; None where none finished."""
    seeds = next(iter(outcomes.values()))
    found: dict[int, float | None] = {}
    for seed in seeds:
        reached = [reach(each[seed].curve, over) for each in outcomes.values() if each[seed].finished]
        found[seed] = min(reached, default=None)
    return found


def read_out(
    outcomes: Mapping[str, Outcomes], name: str, baseline: str, over: Over, place: Mapping[int, float | None]
) -> dict[str, Any]:
    """A contestant's accuracy at ``place``, and the difference to the baseline's there.

    Args:
        outcomes: of all contestants.
        name: whose accuracy.
        baseline: against whom.
        over: what ``place`` is a number of.
        place: for each seed.
    """

    def accuracies(outcomes: Outcomes) -> dict[int, float | None]:
        return {
            seed: accuracy_at(outcome.curve, over, at) if outcome.finished and (at := place[seed]) is not None else None
            for seed, outcome in outcomes.items()
        }

    here, there = accuracies(outcomes[name]), accuracies(outcomes[baseline])
    known = [at for at in place.values() if at is not None]
    return {
        "at": float(np.mean(known)) if known else None,
        "at_per_seed": {str(seed): at for seed, at in place.items()},
        "accuracy": seed_interval(here).as_json(),
        "difference": seed_interval(paired(here, there)).as_json(),
    }


def amounts_to(outcomes: Outcomes, targets: Mapping[int, float | None], over: Over) -> dict[int, float | None]:
    """How much each seed's run took to the target, inf where it never got there; None without run or target."""
    return {
        seed: amount_to(outcome.curve, target, over)
        if outcome.finished and (target := targets[seed]) is not None
        else None
        for seed, outcome in outcomes.items()
    }


def speedups(seconds: Mapping[str, Mapping[int, float | None]], name: str, baseline: str) -> dict[int, float | None]:
    """How many times sooner than the baseline each seed reached the target; 0 where it never did."""
    return paired(seconds[baseline], seconds[name], speedup)


def _reached(values: Mapping[int, float | None]) -> str:
    known = [value for value in values.values() if value is not None]
    return f"{sum(map(math.isfinite, known))} of {len(known)}"


def paired(
    left: Mapping[int, float | None],
    right: Mapping[int, float | None],
    combine: Callable[[float, float], float] = lambda a, b: a - b,
) -> dict[int, float | None]:
    """``combine(left, right)`` seed by seed; None where either has no value.

    Args:
        left: value of each seed.
        right: of the baseline.
        combine: difference by default.
    """
    found: dict[int, float | None] = {}
    for seed, value in left.items():
        other = right.get(seed)
        found[seed] = None if value is None or other is None else combine(value, other)
    return found


def speedup(baseline_seconds: float, seconds: float) -> float:
    """How many times sooner, >= 0: 0 where the target was never reached, 1 where neither needed any time.

    Args:
        baseline_seconds: the baseline's time to the target, inf where it was not reached.
        seconds: the method's.
    """
    if math.isinf(seconds):
        return 0.0
    if seconds == 0:
        return 1.0 if baseline_seconds == 0 else math.inf
    return baseline_seconds / seconds
