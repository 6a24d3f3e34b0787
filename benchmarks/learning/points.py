"""A point of the map: what a comparison in a regime says of each method, from its record and the logs of its runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.learning.pooled import pooled
from benchmarks.shared import Record
from dppo_lab.planning.from_log import plan_log
from dppo_lab.planning.logs import read_log
from dppo_lab.report.curves import band
from dppo_lab.runs.folder import METRICS_FILE
from dppo_lab.runs.reader import Series, read_logs, read_run
from dppo_lab.statistics import seed_interval

CONTROL, STOCK = "control", "trl_g8"

LOGGED = ("completion_rate", "prompt_rate", "kept_share", "added_variance", "completion_ceiling", "prompt_ceiling")
"""Of the figures ``prune/*`` those that say what ``auto`` chose."""


def logged(folder: Path, seeds: list[int], method: str = CONTROL) -> dict[str, float]:
    """Means over steps and seeds: share of groups whose rewards are all equal, and what was dropped."""
    logs = [log for seed in seeds for log in read_logs(folder / "reported" / "runs" / method / f"seed_{seed}")]
    names = {"silent_share": "frac_reward_zero_std", **{name: f"prune/{name}" for name in LOGGED}}
    found = {what: [log[name] for log in logs if log.get(name) is not None] for what, name in names.items()}
    return {what: float(np.mean(values)) for what, values in found.items() if values}


def commits(folder: Path, record: Record) -> dict[str, str]:
    """By method those of its runs, which may be older than the comparison; of several the most frequent first."""
    found = {}
    for method in {**record["methods"], **record.get("at_same_steps", {})}:
        runs = [read_run(folder / "reported" / "runs" / method / f"seed_{seed}") for seed in record["seeds"]]
        counts = Counter(str(run.environment.get("commit")) for run in runs)
        found[method] = ", ".join(commit for commit, _ in counts.most_common())
    return found


def plans(folder: Path, seeds: list[int], group: int) -> dict[str, Record]:
    """What ``dppo plan --log`` says of each of the control's logs, by what is dropped: gains over seeds, >= 1."""
    found: dict[str, dict[int, float | None]] = {"completions": {}, "prompts": {}}
    for seed in seeds:
        log = read_log(folder / "reported" / "runs" / CONTROL / f"seed_{seed}" / METRICS_FILE)
        saved = plan_log(log, generations=group).saved
        for name, gains in found.items():
            gains[seed] = 1 / (1 - saved[name].value)
    return {name: seed_interval(gains).as_json() for name, gains in found.items()}


def point(record: Record, chosen: Mapping[str, Mapping[str, float]]) -> Record:
    """What a comparison says: of each method that shares the control's steps its step and accuracy against it.

    ``against_control`` and ``against_trl_g8`` are seconds to the same final accuracy, over those of the default.
    ``chosen`` has what ``logged`` gives, by method.
    """
    methods: Record = record["methods"]
    first, others = methods[CONTROL], [name for name in methods if name not in (CONTROL, STOCK)]
    opponents = {name: found[name] for name, found in record["best_against"].items()}
    return {
        **{f"against_{name}": {part: found[part] for part in OF_RATIO} for name, found in opponents.items()},
        "step_share": 1 - _phase_share(first, "rollout"),
        "planning_share": {name: _phase_share(methods[name], "prune") for name in (CONTROL, *others)},
        "silent_share": chosen[CONTROL]["silent_share"],
        "chosen": {name: dict(found) for name, found in chosen.items()},
        "seconds": {name: seconds_ratio(first, methods[name]) for name in methods},
        "seeds": len(record["seeds"]),
        "step_ratio": {name: _step_ratio(first, methods[name]) for name in others},
        **{what: {name: methods[name][what] for name in others} for what in ("equal_updates", "equal_seconds")},
        "final_accuracy": {name: methods[name]["final"] for name in methods},
        "curves": {name: mean_curve([run["curve"] for run in methods[name]["runs"]]) for name in methods},
        "overrides": {name: methods[name]["overrides"] for name in methods},
        "environment": {name: value for name, value in record["environment"].items() if name != "commit"},
        "at_same_steps": _at_same_steps(record.get("at_same_steps", {}), chosen),
        "beside_stock": {
            name: beside_stock(each, name, chosen) for name, each in record.get("beside_stock", {}).items()
        },
    }


def beside_stock(record: Record, ours: str, chosen: Mapping[str, Mapping[str, float]]) -> Record:
    """What a comparison with TRL says of another method than the default, and that TRL."""
    methods, sooner = record["methods"], record["best_against"][STOCK][STOCK]
    return {
        f"against_{STOCK}": {part: sooner[part] for part in OF_RATIO},
        "pooled": pooled(methods[STOCK]["runs"], methods[ours]["runs"], "seconds"),
        "seconds": seconds_ratio(methods[STOCK], methods[ours]),
        "step_ratio": _step_ratio(methods[STOCK], methods[ours]),
        "rollout_share": {name: _phase_share(methods[name], "rollout") for name in (STOCK, ours)},
        "final_accuracy": {name: methods[name]["final"] for name in (STOCK, ours)},
        "overrides": {name: methods[name]["overrides"] for name in (STOCK, ours)},
        "chosen": dict(chosen.get(ours, {})),
        "environment": record["environment"],
    }


def _at_same_steps(methods: Record, chosen: Mapping[str, Mapping[str, float]]) -> Record:
    """By method, what its noise makes of accuracy at the control's updates and schedule, and that control."""

    def ended(name: str) -> Record:
        return {
            "final_accuracy": methods[name]["final"],
            "overrides": methods[name]["overrides"],
            "chosen": dict(chosen.get(name, {})),
        }

    return {
        name: {
            **ended(name),
            "difference": found["equal_updates"]["difference"],
            "step_ratio": _step_ratio(methods[CONTROL], found),
            "against_control": {part: found["against_control"].get(part) for part in OF_RATIO},
            "pooled": pooled(methods[CONTROL]["runs"], found["runs"], "step"),
            "control": ended(CONTROL),
        }
        for name, found in methods.items()
        if name != CONTROL
    }


PER_METHOD = (
    *("step_ratio", "planning_share", "equal_updates", "equal_seconds"),
    *("final_accuracy", "curves", "overrides", "chosen", "seconds", "at_same_steps", "beside_stock", "commits"),
)
"""What a point says of each method, with figures of each seed where seeds differ between methods."""


def merged(known: Record, new: Record) -> Record:
    """A new point, and of an earlier one the methods and opponents that the new one lacks."""
    return {**known, **new, **{part: {**known.get(part, {}), **new[part]} for part in PER_METHOD}}


OF_RATIO = ("median", "low", "high", "at_most", "reached", "per_seed", "missing")
"""What is kept of a ratio of seconds to a target."""


def mean_curve(curves: Sequence[Sequence[Record]]) -> list[list[float]]:
    """Seconds, mean accuracy over seeds and the ends of its 95% interval; empty where the runs share no stretch."""
    of_runs = [
        Series(
            x_I=np.array([each["seconds"] for each in curve]),
            value_I=np.array([each["accuracy"] for each in curve]),
            left_out=0,
        )
        for curve in curves
    ]
    found = band(of_runs)
    if found is None:
        return []
    ends = (found.mean_I if end_I is None else end_I for end_I in (found.low_I, found.high_I))
    return np.round(np.column_stack([found.x_I, found.mean_I, *ends]), 5).tolist()


def seconds_ratio(first: Record, other: Record) -> Record:
    """Seconds of a run of another method over those of the first's, over seeds."""
    return _over_seeds(first, other, lambda before, after: after["seconds"] / before["seconds"])


def _phase_share(method: Record, phase: str) -> float:
    """Mean over a method's runs of the share of its seconds that a phase took."""
    phases = [run["phases"] for run in method["runs"]]
    return float(np.mean([each[phase] / sum(each.values()) for each in phases]))


def _step_ratio(first: Record, other: Record) -> Record:
    """Seconds of a step of the first over those of the other, over seeds."""

    def pace(end: Record) -> float:
        return end["seconds"] / end["step"]

    return _over_seeds(first, other, lambda before, after: pace(before) / pace(after))


def _over_seeds(first: Record, other: Record, ratio: Callable[[Record, Record], float]) -> Record:
    """A ratio of the last evaluations of two methods' runs, over seeds."""
    pairs = zip(first["runs"], other["runs"], strict=True)
    ends = {before["seed"]: (before["curve"][-1], after["curve"][-1]) for before, after in pairs}
    return seed_interval({seed: ratio(*both) for seed, both in ends.items()}).as_json()
