"""``dppo compare`` with CPU seconds of the one thread that trains, and a record for several opponents and targets.

python -m benchmarks.learning.compare TUNED.yaml [--seeds 5] [--methods trl_g8,dppo_default] [--ours dppo_default]
    [--against trl_g8,trl] [--targets trl_g8] [--output FILE.json] [--any_field value]
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.learning.tables import summary
from benchmarks.learning.tune import told
from benchmarks.shared import options
from dppo.errors import ConfigError
from dppo.files import write_json
from dppo_lab.cli.words import listed, read_words, wide_console
from dppo_lab.comparison.curves import AMOUNTS
from dppo_lab.comparison.plan import Comparison, plan
from dppo_lab.comparison.results import Curves, Target, curves_of, final_target, ratios, read_results, spent, summary_of
from dppo_lab.comparison.runner import run_comparison
from dppo_lab.comparison.table import NARROWEST, show


def record_of(compared: Comparison, ours: str, opponents: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """What ``results.json`` has, and the same for several targets: final accuracies, of the same seed, of methods."""
    results = read_results(compared)
    if lacking := sorted({ours, *opponents, *targets} - results.keys()):
        raise ConfigError(f"{lacking[0]} takes no part in this comparison. There are: {', '.join(results)}")
    curves = {name: curves_of(found) for name, found in results.items()}
    goals = {name: final_target(name, curves[name]) for name in targets}
    return {
        **summary_of(compared, results),
        "best": ours,
        "targets": {name: goal.as_json() for name, goal in goals.items()},
        "to_target": {name: spent(curves, goal) for name, goal in goals.items()},
        "speedup": {name: ratios(curves, goal, targets[0]) for name, goal in goals.items()},
        "best_against": {
            opponent: {name: against(curves, goal, opponent, ours) for name, goal in goals.items()}
            for opponent in opponents
        },
    }


def against(curves: Mapping[str, Curves], goal: Target, opponent: str, ours: str) -> dict[str, Any]:
    """What an opponent spent to a target divided by what our method did: seconds, and the other amounts."""
    pair = {name: curves[name] for name in (opponent, ours)}
    found = {over: ratios(pair, goal, opponent, over)[ours] for over in AMOUNTS}
    return {**found.pop("seconds"), "missing": goal.missing or None, **found}


def main() -> int:
    """Train what is missing, print the tables, and write the record if a file is named; 1 if a run failed."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from the configuration's seed on")
    parser.add_argument("--methods", help="names of the block compare; all by default")
    parser.add_argument("--ours", default="dppo_default", help="which method opponents are compared with")
    parser.add_argument("--against", default="trl_g8,trl,grpo_rows", help="opponents")
    parser.add_argument("--targets", default="trl_g8,grpo_rows", help="whose final accuracies are the targets")
    config, given, flags = read_words(parser, sys.argv[1:])
    torch.set_num_threads(1)
    compared = plan(config, flags, methods=listed(given.methods), seeds=given.seeds)
    results = run_comparison(compared, told)
    record = record_of(compared, given.ours, listed(given.against) or [], listed(given.targets) or [])
    show(results, wide_console(NARROWEST))
    print(summary(record, record["methods"]))
    if given.output is not None:
        write_json(given.output, record)
    return int(any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"]))


if __name__ == "__main__":
    time.perf_counter = time.process_time  # every clock of this process
    sys.exit(main())
