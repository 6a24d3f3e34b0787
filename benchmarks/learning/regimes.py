"""The default against its tuned control where steps and signal are as users have them: a point of the map each.

python -m benchmarks.learning.regimes REGIME... [--seeds 10] [--output benchmarks/results/regimes.json]

REGIME is a name of ``REGIMES``. Each is tuned, then run with ``regimes.yaml``; what was run before is not run again,
and methods that are not run stay in the file as they are.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.points import CONTROL, STOCK, commits, logged, merged, plans, point, seconds_ratio
from benchmarks.learning.tables import cell, speedup, table
from benchmarks.shared import Record, earlier, options
from dppo.files import write_json

CONFIG = Path(__file__).with_suffix(".yaml")
RESULTS = Path(__file__).parents[1] / "results" / "regimes.json"

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
    tuned, record, kept = (folder / f"{regime}{end}" for end in (".yaml", ".compared.json", ".steps.json"))
    given = methods.split(",")
    opponents = [name for name in (CONTROL, STOCK) if name in given]
    timed = [name for name in given if name not in SAME_STEPS]
    steps: dict[str, int] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    _tune(regime, folder, methods, steps, tuned)
    found = compared(tuned, seeds, timed, "default", opponents, record)
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
        found = compared(tuned, seeds, timed, "default", opponents, record)
    if off := corrected(found["methods"]):
        print(f"{regime}: seconds of {', '.join(off)} are more than {NEAR:.0%} from the control's", flush=True)
    if same := [name for name in SAME_STEPS if name in given]:
        output = record.with_suffix(".same_steps.json")
        beside = compared(tuned, seeds, [CONTROL, *same], same[0], [CONTROL], output)
        sooner = beside["speedup"][CONTROL]
        found["at_same_steps"] = {
            name: {**each, "against_control": sooner[name]} for name, each in beside["methods"].items()
        }
    if STOCK in given:
        found["beside_stock"] = {
            name: compared(tuned, seeds, [STOCK, name], name, [STOCK], record.with_suffix(f".{name}.json"))
            for name in BESIDE_STOCK
            if name in given
        }
    return found


def _tune(regime: str, folder: Path, methods: str, steps: Mapping[str, int], output: Path) -> None:
    """Write the file for ``compare``; ``steps`` are those of methods whose pilots were off."""
    words = ["--methods", methods, "--output", str(output), "--output_dir", str(folder / regime)]
    words += [word for name, value in SIZES.get(regime, {}).items() for word in (f"--{name}", str(value))]
    words += ["--steps", ",".join(f"{name}={count}" for name, count in steps.items())] if steps else []
    module("tune", str(CONFIG), *words, *flags(regime))


def flags(regime: str) -> list[str]:
    """The fields of a regime as words of a command."""
    return [word for name, value in REGIMES[regime].items() for word in (f"--{name}", str(value))]


def compared(
    tuned: Path, seeds: int, methods: Sequence[str], ours: str, opponents: Sequence[str], output: Path
) -> Record:
    """Compare ``methods``; opponents are what ``ours`` is compared with, and whose accuracy is the target."""
    words = ["--methods", ",".join(methods), "--ours", ours]
    words += [word for name in ("--against", "--targets") for word in (name, ",".join(opponents))]
    module("compare", str(tuned), "--seeds", str(seeds), *words, "--output", str(output))
    return json.loads(output.read_text(encoding="utf-8"))


def corrected(methods: Record, first: str = CONTROL, near: float = NEAR) -> dict[str, int]:
    """Steps that take the first's seconds, of each method whose runs took more or less of them than ``near``."""
    ratios = {name: seconds_ratio(methods[first], found)["mean"] for name, found in methods.items()}
    return {
        name: round(methods[name]["overrides"]["max_steps"] / ratio)
        for name, ratio in ratios.items()
        if abs(ratio - 1) > near
    }


def module(name: str, *words: str) -> None:
    """Run a program of this folder."""
    subprocess.run([sys.executable, "-m", f"benchmarks.learning.{name}", *words], check=True)


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
    points: dict[str, Record] = earlier(given.output).get("regimes", {})
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
