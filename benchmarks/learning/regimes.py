"""The default against its tuned control where steps and signal are as users have them: a point of the map each.

python -m benchmarks.learning.regimes REGIME... [--seeds 10] [--output benchmarks/results/regimes.json]

REGIME is a name of ``REGIMES``. Each is tuned, then run with ``regimes.yaml``; what was run before is not run again,
and methods that are not run stay in the file as they are.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from answer_judge.files import write_json
from benchmarks.learning.pooled import pooled
from benchmarks.learning.tables import cell, speedup, table
from benchmarks.shared import Record, options
from dppo_lab.planning.from_log import plan_log
from dppo_lab.planning.logs import read_log
from dppo_lab.report.curves import band
from dppo_lab.runs.folder import METRICS_FILE
from dppo_lab.runs.reader import Series, read_logs, read_run
from dppo_lab.statistics import seed_interval

CONFIG = Path(__file__).with_suffix(".yaml")

SPARSE = {"model_name_or_path": "scratch:embedded_sparse", "dataset_name": "embedded_sparse"}
SPARSE |= {"eval_benchmarks": "embedded_sparse", "embedded_problems": 72}
SILENT = {"model_name_or_path": "scratch:embedded_silent", "dataset_name": "embedded_silent"}
SILENT |= {"eval_benchmarks": "embedded_silent", "embedded_problems": 400}
RARE = {"model_name_or_path": "scratch:embedded_rare", "dataset_name": "embedded_rare"}
RARE |= {"eval_benchmarks": "embedded_rare", "embedded_problems": 400}
KL, TWICE = {"beta": 0.04}, {"num_iterations": 2}
REGIMES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "kl": KL,
    "two_passes": TWICE,
    "kl_two_passes": KL | TWICE,
    "sparse": SPARSE,
    "sparse_two_passes": SPARSE | TWICE,
    "sparse_kl": SPARSE | KL,
    "sparse_kl_two_passes": SPARSE | KL | TWICE,
    "silent": SILENT,
    "silent_two_passes": SILENT | TWICE,
    "silent_kl": SILENT | KL,
    "silent_kl_two_passes": SILENT | KL | TWICE,
    "rare": RARE,
    "large_steps": {},
    "large_groups": {},
}
"""By name: fields of ``regimes.yaml`` that are changed."""
SIZES: Mapping[str, Mapping[str, int]] = {
    "large_steps": {"completions": 256},
    "large_groups": {"completions": 128, "groups": 16},
}
"""Completions of a step and of a prompt, where they are not 64 and 4: the more of both, the less of a step is decoding,
and the more prompts have a gradient."""
CONTROL, STOCK = "control", "trl_g8"
SAME_STEPS = ("same_steps", "twice_same_steps", "prior_same_steps")
"""With the control's updates and schedule, and not its seconds: the default, the control with twice the prompts, and
prompts chosen by pass rates in the data."""
BESIDE_STOCK = ("prior", "control_four_updates", "four_updates", "prior_four_updates")
"""What is compared with TRL beside the default: prompts chosen by pass rates in the data, and completions of four
steps generated at once, by the control too."""

NEAR, CORRECTIONS = 0.05, 2
"""How far the mean seconds of a method's runs may be from the control's, and how often its steps are corrected."""


def run(regime: str, folder: Path, seeds: int, methods: str) -> Record:
    """Tune and compare in a regime, for equal seconds; the record of the comparison."""
    tuned, record, kept = (folder / f"{regime}{end}" for end in (".yaml", ".json", ".steps.json"))
    given = methods.split(",")
    opponents = [name for name in (CONTROL, STOCK) if name in given]
    timed = [name for name in given if name not in SAME_STEPS]
    steps: dict[str, int] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    _tune(regime, folder, methods, steps, tuned)
    found = _compared(tuned, seeds, timed, "default", opponents, record)
    for _ in range(CORRECTIONS):
        if not (others := corrected(found["methods"])):
            break
        # First: a run with other steps than the file has is refused. The control too: its seconds are those of a
        # machine as busy as it was then.
        for name in (CONTROL, *others):
            shutil.rmtree(folder / regime / "reported" / "runs" / name)
        steps |= others
        write_json(kept, steps)
        _tune(regime, folder, methods, steps, tuned)
        found = _compared(tuned, seeds, timed, "default", opponents, record)
    if off := corrected(found["methods"]):
        print(f"{regime}: seconds of {', '.join(off)} are more than {NEAR:.0%} from the control's", flush=True)
    if same := [name for name in SAME_STEPS if name in given]:
        output = record.with_suffix(".same_steps.json")
        beside = _compared(tuned, seeds, [CONTROL, *same], same[0], [CONTROL], output)
        sooner = beside["speedup"][CONTROL]
        found["at_same_steps"] = {
            name: {**each, "against_control": sooner[name]} for name, each in beside["methods"].items()
        }
    if STOCK in given:
        found["beside_stock"] = {
            name: _compared(tuned, seeds, [STOCK, name], name, [STOCK], record.with_suffix(f".{name}.json"))
            for name in BESIDE_STOCK
            if name in given
        }
    return found


def _tune(regime: str, folder: Path, methods: str, steps: Mapping[str, int], output: Path) -> None:
    """Write the file for ``compare``; ``steps`` are those of methods whose pilots were off."""
    words = ["--methods", methods, "--output", str(output), "--output_dir", str(folder / regime)]
    words += [word for name, value in SIZES.get(regime, {}).items() for word in (f"--{name}", str(value))]
    words += ["--steps", ",".join(f"{name}={count}" for name, count in steps.items())] if steps else []
    changed = [word for name, value in REGIMES[regime].items() for word in (f"--{name}", str(value))]
    _module("tune", str(CONFIG), *words, *changed)


def _compared(
    tuned: Path, seeds: int, methods: Sequence[str], ours: str, opponents: Sequence[str], output: Path
) -> Record:
    """Compare ``methods``; opponents are what ``ours`` is compared with, and whose accuracy is the target."""
    words = ["--methods", ",".join(methods), "--ours", ours]
    words += [word for name in ("--against", "--targets") for word in (name, ",".join(opponents))]
    _module("compare", str(tuned), "--seeds", str(seeds), *words, "--output", str(output))
    return json.loads(output.read_text(encoding="utf-8"))


def corrected(methods: Record) -> dict[str, int]:
    """Steps that take the control's seconds, of each method whose runs took more or less of them than ``NEAR``."""
    ratios = {name: seconds_ratio(methods[CONTROL], found)["mean"] for name, found in methods.items()}
    return {
        name: round(methods[name]["overrides"]["max_steps"] / ratio)
        for name, ratio in ratios.items()
        if abs(ratio - 1) > NEAR
    }


def seconds_ratio(first: Record, other: Record) -> Record:
    """Seconds of a run of another method over those of the first's, over seeds."""
    return _over_seeds(first, other, lambda before, after: after["seconds"] / before["seconds"])


def _module(name: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.learning.{name}", *words], check=True)


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


def summary(points: Mapping[str, Record]) -> str:
    """A row for each regime, in Markdown."""
    rows = []
    for name, each in points.items():
        ends = [each.get(f"against_{opponent}") for opponent in (CONTROL, STOCK)]
        shares = [f"{each['step_share']:.0%}", f"{each['silent_share']:.0%}"]
        step = cell(each["step_ratio"]["default"], "mean", "{:.2f}")
        rows.append([name, *shares, step, *(speedup(end, end["missing"]) if end else "not run" for end in ends)])
    headings = ("regime", "pruning can reach", "silent", "step, times as fast", "to the control's accuracy", "to TRL's")
    return table(headings, rows)


def main() -> int:
    """Run regimes, and add them to the file."""
    parser = options(__doc__)
    parser.add_argument("regimes", nargs="+", choices=REGIMES)
    parser.add_argument("--seeds", type=int, default=10, help="how many, from the configuration's seed on")
    parser.add_argument(
        "--methods", default=f"{CONTROL},default,tokens,{STOCK}", help="control and default, and others"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/regimes"), help="where the runs go")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    known: Path | None = given.output if given.output is not None and given.output.exists() else None
    points: dict[str, Record] = json.loads(known.read_text(encoding="utf-8"))["regimes"] if known else {}
    for name in given.regimes:
        record = run(name, given.folder, given.seeds, given.methods)
        own = [each for each in {**record["methods"], **record.get("at_same_steps", {})} if each != STOCK]
        chosen = {each: logged(given.folder / name, record["seeds"], each) for each in own}
        new = point(record, chosen)
        group = new["overrides"][CONTROL]["num_generations"]
        new["plan_of_logs"] = plans(given.folder / name, record["seeds"], group)
        new["commits"] = commits(given.folder / name, record)
        points[name] = merged(points.get(name, {}), new)
        if given.output is not None:
            write_json(given.output, {"regimes": points})
    print(summary(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
