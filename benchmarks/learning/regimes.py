"""The default against its tuned control where steps and signal are as users have them: a point of the map each.

python -m benchmarks.learning.regimes REGIME... [--seeds 10] [--output benchmarks/results/regimes.json]

REGIME is a name of ``REGIMES``. Each is tuned, then run with ``regimes.yaml``; what was run before is not run again.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from answer_judge.files import write_json
from benchmarks.shared import Record, options
from dppo_lab.runs.reader import read_logs
from dppo_lab.statistics import seed_interval

CONFIG = Path(__file__).with_suffix(".yaml")

SPARSE = {"model_name_or_path": "scratch:embedded_sparse", "dataset_name": "embedded_sparse"}
SPARSE |= {"eval_benchmarks": "embedded_sparse", "embedded_problems": 72}
KL, TWICE = {"beta": 0.04}, {"num_iterations": 2}
REGIMES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "kl": KL,
    "two_passes": TWICE,
    "kl_two_passes": KL | TWICE,
    "sparse": SPARSE,
    "sparse_kl": SPARSE | KL,
    "sparse_kl_two_passes": SPARSE | KL | TWICE,
}
"""By name: fields of ``regimes.yaml`` that are changed."""
CONTROL, STOCK = "control", "trl_g8"


def run(regime: str, folder: Path, seeds: int, methods: str) -> Record:
    """Tune and compare in a regime; the record of the comparison."""
    changed = [word for name, value in REGIMES[regime].items() for word in (f"--{name}", str(value))]
    tuned, record = folder / f"{regime}.yaml", folder / f"{regime}.json"
    chosen = ["--methods", methods, "--output", str(tuned), "--output_dir", str(folder / regime)]
    _module("tune", str(CONFIG), *chosen, *changed)
    opponents = ",".join(name for name in (CONTROL, STOCK) if name in methods.split(","))
    names = ["--ours", "default", "--against", opponents, "--targets", opponents]
    _module("compare", str(tuned), "--seeds", str(seeds), *names, "--output", str(record))
    return json.loads(record.read_text(encoding="utf-8"))


def _module(name: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.learning.{name}", *words], check=True)


def silent_share(folder: Path, seeds: list[int]) -> float:
    """Share of the control's groups whose rewards are all equal, over steps and seeds."""
    logs = [log for seed in seeds for log in read_logs(folder / "reported" / "runs" / CONTROL / f"seed_{seed}")]
    return float(np.mean([log["frac_reward_zero_std"] for log in logs if "frac_reward_zero_std" in log]))


def point(record: Record, silent: float) -> Record:
    """What a comparison says: of each method that shares the control's steps its step and accuracy against it.

    ``against_control`` and ``against_trl_g8`` are seconds to the same final accuracy, over those of the default.
    """
    methods: Record = record["methods"]
    first, others = methods[CONTROL], [name for name in methods if name not in (CONTROL, STOCK)]
    phases = [run["phases"] for run in first["runs"]]
    opponents = {name: found[name] for name, found in record["best_against"].items()}
    return {
        **{f"against_{name}": _interval(found) for name, found in opponents.items()},
        "step_share": float(np.mean([1 - each["rollout"] / sum(each.values()) for each in phases])),
        "silent_share": silent,
        "seeds": len(record["seeds"]),
        "step_ratio": {name: _over_seeds(first, methods[name], _step_ratio) for name in others},
        "accuracy_difference": {name: _over_seeds(first, methods[name], _difference) for name in others},
        "equal_updates": {name: methods[name]["equal_updates"] for name in others},
        "final_accuracy": {name: methods[name]["final"] for name in methods},
        "overrides": {name: methods[name]["overrides"] for name in methods},
        "environment": record["environment"],
    }


def _interval(found: Record) -> Record:
    return {name: found[name] for name in ("median", "low", "high", "reached")}


def _written(found: Record) -> str:
    """A ratio with its interval; ``None`` where too few runs got there."""
    median, low, high = (None if found[name] is None else round(found[name], 2) for name in ("median", "low", "high"))
    return f"{median} [{low}, {high}]"


Run = Record
"""One of a comparison: its ``curve``, ``phases`` and more."""


def _over_seeds(first: Record, other: Record, figure: Callable[[Run, Run], float]) -> Record:
    pairs = zip(first["runs"], other["runs"], strict=True)
    return seed_interval({before["seed"]: figure(before, after) for before, after in pairs}).as_json()


def _step_ratio(before: Run, after: Run) -> float:
    """Seconds of a step of the first over those of the second."""
    ends = [run["curve"][-1] for run in (before, after)]
    return ends[0]["seconds"] / ends[0]["step"] / (ends[1]["seconds"] / ends[1]["step"])


def _difference(before: Run, after: Run) -> float:
    return after["curve"][-1]["accuracy"] - before["curve"][-1]["accuracy"]


def table(points: Mapping[str, Record]) -> Table:
    """A row for each regime."""
    found = Table(
        "regime", "pruning can reach", "silent", "step, times as fast", "to the control's accuracy", "to TRL's"
    )
    for name, each in points.items():
        step, ends = each["step_ratio"]["default"], [each["against_control"], each.get("against_trl_g8")]
        intervals = [_written(end) if end else "not run" for end in ends]
        shares = [f"{each['step_share']:.0%}", f"{each['silent_share']:.0%}"]
        found.add_row(name, *shares, f"{step['mean']:.2f} [{step['low']:.2f}, {step['high']:.2f}]", *intervals)
    return found


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
        points[name] = point(record, silent_share(given.folder / name, record["seeds"]))
        if given.output is not None:
            write_json(given.output, {"regimes": points})
    Console().print(table(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
