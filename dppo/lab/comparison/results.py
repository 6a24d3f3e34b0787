"""``results.json``: what the runs of a comparison reached, read from their files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dppo.errors import FileError
from dppo.lab.comparison.contestants import Contestant
from dppo.lab.comparison.curves import READOUTS, Curve, Over, Point, accuracy_at, curve_of, reach
from dppo.lab.comparison.plan import Comparison
from dppo.lab.comparison.survival import PerSeed, median_interval, ratio
from dppo.lab.environment import environment
from dppo.lab.runs.folder import FORMAT, STOCK, RunFacts
from dppo.lab.runs.reader import phases_of, read_facts, read_logs
from dppo.lab.statistics import seed_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one run, according to its files."""

    seed: int
    status: str
    """``finished``, ``failed``, ``running`` (also one that was stopped) or ``missing``."""
    error: str | None = None
    facts: RunFacts | None = None
    """Its ``run.json``; None where that is missing or cannot be read."""
    curve: tuple[Point, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if its curve counts."""
        return self.status == "finished"

    def as_json(self) -> dict[str, Any]:
        """The record of ``results.json``."""
        curve = [asdict(point) for point in self.curve]
        return {"seed": self.seed, "status": self.status, "error": self.error, "curve": curve, "phases": self.phases}


Results = Mapping[int, RunResult]
"""Of one contestant, by seed."""
Curves = Mapping[int, Curve | None]
"""Of one contestant, by seed; None where its run did not finish."""
Figures = Mapping[int, float | None]
"""A figure of each seed; None where its run did not finish, or there is none."""


def result_of(comparison: Comparison, contestant: Contestant, seed: int) -> RunResult:
    """The result in a run's files; a run that cannot be read counts as failed, with the reason."""
    folder = comparison.run_folder(contestant, seed)
    try:
        facts = read_facts(folder)
        if facts is None:
            return RunResult(seed=seed, status="missing")
        logs = read_logs(folder)
        curve, phases = tuple(curve_of(logs)), phases_of(logs)
    except FileError as problem:
        return RunResult(seed=seed, status="failed", error=str(problem))
    status, error = str(facts.status), facts.error
    if status == "stopped":
        status, error = "running", None
    if status == "finished" and not curve:
        status, error = "failed", "it logged no accuracy: eval_benchmarks gave no figures"
    if status == "finished" and facts.updates and curve[-1].step < facts.updates:
        status, error = "failed", f"its last evaluation is of step {curve[-1].step:g} of {facts.updates}"
    return RunResult(seed=seed, status=status, error=error, facts=facts, curve=curve, phases=phases)


def summarise(comparison: Comparison) -> dict[str, Any]:
    """The content of ``results.json``; unfinished runs are listed with their status."""
    results = {
        each.name: {seed: result_of(comparison, each, seed) for seed in comparison.seeds}
        for each in comparison.contestants
    }
    curves = {
        name: {seed: result.curve if result.finished else None for seed, result in found.items()}
        for name, found in results.items()
    }
    baseline, given = comparison.baseline, comparison.target
    first = curves[baseline]
    target = final_target(baseline, first)
    if given is not None:
        target = Target(what=f"accuracy {given:g}", per_seed=dict.fromkeys(first, given))
    places = {what: common_reach(curves, over) for what, over in READOUTS.items()}
    key = "time_to_trl_final" if baseline == STOCK and given is None else "time_to_target"
    return {
        "format": FORMAT,
        "task": _task(comparison, results),
        "environment": environment(),
        "seeds": list(comparison.seeds),
        "baseline": baseline,
        "target": target.as_json(),
        "methods": {
            each.name: {
                **_about(each, results[each.name], comparison),
                "runs": [result.as_json() for result in results[each.name].values()],
                "final": seed_interval(finals(curves[each.name])).as_json(),
                **{what: read_out(curves[each.name], first, over, places[what]) for what, over in READOUTS.items()},
                "to_target": spent(curves[each.name], target),
            }
            for each in comparison.contestants
        },
        "speedup": {name: {key: found} for name, found in ratios(curves, target, baseline).items()},
    }


def _about(contestant: Contestant, results: Results, comparison: Comparison) -> dict[str, Any]:
    """Its method, as recorded by its runs, and the shared fields that it was not given."""
    facts = [result.facts for result in results.values() if result.facts and result.facts.biased is not None]
    return {
        "method": contestant.method,
        "overrides": dict(contestant.overrides),
        "left_out": contestant.left_out(comparison.config),
        "biased": list(facts[0].biased) if facts else [],
        "finished": f"{sum(result.finished for result in results.values())} of {len(results)}",
    }


def _task(comparison: Comparison, results: Mapping[str, Results]) -> dict[str, Any]:
    """Model and data by their names in the configuration, and how many prompts the runs found."""
    tasks = (result.facts.task for each in results.values() for result in each.values() if result.facts)
    config = comparison.config
    return {
        "model": config.get("model_name_or_path"),
        "dataset": config.get("dataset_path") or config.get("dataset_name"),
        "prompts": next((task.get("prompts") for task in tasks if task), None),
        "benchmarks": config.get("eval_benchmarks"),
    }


def common_reach(curves: Mapping[str, Curves], over: Over) -> Figures:
    """How far all finished runs of a seed went; contestants need not have the same seeds."""
    ends: dict[int, list[float]] = {seed: [] for found in curves.values() for seed in found}
    for found in curves.values():
        for seed, curve in found.items():
            ends[seed] += [getattr(curve[-1], over)] if curve else []
    return {seed: min(found, default=None) for seed, found in ends.items()}


def read_out(curves: Curves, baseline: Curves, over: Over, places: Figures) -> dict[str, Any]:
    """A contestant's accuracy at ``places``, each seed's amount of ``over``, and its difference to the baseline's."""

    def accuracies(found: Curves) -> Figures:
        read = ((seed, curve, places[seed]) for seed, curve in found.items())
        return {seed: accuracy_at(curve, at, over) if curve and at is not None else None for seed, curve, at in read}

    here = accuracies(curves)
    known = [at for at in places.values() if at is not None]
    return {
        "at": float(np.mean(known)) if known else None,
        "at_per_seed": {str(seed): at for seed, at in places.items()},
        "accuracy": seed_interval(here).as_json(),
        "difference": seed_interval(paired(here, accuracies(baseline))).as_json(),
    }


def paired(left: Figures, right: Figures) -> dict[int, float | None]:
    """``left - right``, seed by seed; None where either has no value."""
    pairs = {seed: (value, right.get(seed)) for seed, value in left.items()}
    return {seed: None if one is None or other is None else one - other for seed, (one, other) in pairs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An accuracy for each seed."""

    what: str
    """In words, such as ``final accuracy of trl, same seed``."""
    per_seed: Figures
    """In [0, 1]; None where there is none."""
    missing: str = ""
    """Why no seed has one; empty where seeds have."""

    def as_json(self) -> dict[str, Any]:
        """The record of ``results.json``."""
        return {
            "what": self.what,
            "per_seed": {str(seed): value for seed, value in self.per_seed.items()},
            "missing": self.missing or None,
        }


def final_target(name: str, curves: Curves) -> Target:
    """The final accuracy of a contestant with the same seed; none where the contestant did not improve.

    It improved if the interval of its gain is above 0; with too few seeds for an interval, if every seed gained.
    Otherwise its final accuracy is its start plus noise, and a speedup to it would be a ratio of clock readings.
    """
    what = f"final accuracy of {name}, same seed"
    starts = {seed: curve[0].accuracy if curve else None for seed, curve in curves.items()}
    gain = seed_interval(paired(finals(curves), starts))
    gains = [value for value in gain.per_seed.values() if value is not None]
    if gains and (min(gains) if gain.low is None else gain.low) <= 0:
        ends = "" if gain.low is None else f" [{100 * gain.low:+.1f}, {100 * (gain.high or 0.0):+.1f}]"
        missing = f"{name} did not improve: its accuracy changed by {100 * (gain.centre or 0.0):+.1f}{ends} points"
        return Target(what=what, per_seed=dict.fromkeys(curves), missing=missing)
    return Target(what=what, per_seed=finals(curves))


def finals(curves: Curves) -> Figures:
    """The last accuracy of each seed."""
    return {seed: curve[-1].accuracy if curve else None for seed, curve in curves.items()}


def reaches(curves: Curves, target: Target, over: Over) -> PerSeed:
    """Amount of ``over`` that each seed spent until its target, or in all."""
    return {
        seed: reach(curve, place, over) if curve and (place := target.per_seed.get(seed)) is not None else None
        for seed, curve in curves.items()
    }


def spent(curves: Curves, target: Target) -> dict[str, Any]:
    """Median seconds to the target, and how many seeds got there."""
    runs = reaches(curves, target, "seconds")
    known = [run.reached for run in runs.values() if run is not None]
    reached = None if target.missing else f"{sum(known)} of {len(known)}"
    return {"seconds": median_interval(runs).as_json("median"), "reached": reached}


def ratios(
    contestants: Mapping[str, Curves], target: Target, baseline: str, over: Over = "seconds"
) -> dict[str, dict[str, Any]]:
    """By contestant: what the baseline spent to the target over what it did, as of ``ratio``."""
    first = reaches(contestants[baseline], target, over)
    return {name: ratio(first, reaches(curves, target, over)) for name, curves in contestants.items()}
