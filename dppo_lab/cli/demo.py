"""``dppo demo``: GRPO and DPPO side by side on an embedded task, in a few minutes on two cores."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dppo.errors import ConfigError
from dppo_lab.cli.progress import open_board

if TYPE_CHECKING:
    from dppo_lab.demo.run import DemoProgress


def main(words: Sequence[str]) -> int:
    """Run the demonstration, print its table, and say where the files are."""
    parser = argparse.ArgumentParser(prog="dppo demo", description=main.__doc__)
    parser.add_argument("--output", default="runs/demo", help="folder for results.json, curves.png and the checkpoint")
    parser.add_argument(
        "--seeds", type=int, default=1, help="number of seeds, each with its own warm start (default 1)"
    )
    parser.add_argument("--quick", action="store_true", help="under 90 seconds: a third of the training")
    parser.add_argument("--threads", type=int, help="torch threads (default: the faster of 1 and 2, tried first)")
    options = parser.parse_args(words)
    if options.seeds < 1:
        raise ConfigError(f"seeds={options.seeds} must be at least 1. Try dppo demo --seeds 5")
    import torch

    from dppo_lab.demo.figures import draw_curves
    from dppo_lab.demo.run import QUICK, DemoSetting, fastest_threads, run_demo

    torch.set_num_threads(options.threads or fastest_threads())
    console = Console()
    setting = QUICK if options.quick else DemoSetting()
    folder = Path(options.output)
    with open_board(Console(file=sys.stderr)) as board:

        def report(event: "DemoProgress") -> None:
            board.update(f"seed {event.seed}  {event.stage}", event.done, figures=event.figures)

        results = run_demo(folder, range(options.seeds), setting, report)
    draw_curves(results, folder / "curves.png")
    show(results, console)
    console.print(f"results.json, curves.png and checkpoint/ are in {folder} ({results['total_seconds']:.0f} s in all)")
    return 0


def show(results: dict[str, Any], console: Console) -> None:
    """Print the difficulty of the task and the table of methods, means over seeds."""
    shares = [np.mean([s[name] for s in results["difficulty_at_start"]]) for name in results["difficulty_at_start"][0]]
    console.print(
        f"training questions at the start: {shares[0]:.0%} nearly always right, {shares[1]:.0%} in between, "
        f"{shares[2]:.0%} nearly always wrong"
    )
    seeds = len(results["seeds"])
    over = f"{seeds} seeds, 95% interval over seeds" if seeds > 1 else "1 seed, 95% interval over questions"
    table = Table(title=f"equal training seconds from one warm start\n({over})")
    table.add_column()
    for name in results["methods"]:
        table.add_column(name, justify="right")
    columns = [_column(method, improved=results.get("grpo_improved", True)) for method in results["methods"].values()]
    for heading in columns[0]:
        table.add_row(heading, *(column[heading] for column in columns))
    console.print(table)


def _column(method: dict[str, Any], *, improved: bool) -> dict[str, str]:
    """What the table says of a method, by row."""
    reached = [seconds for seconds in method["seconds_to_grpo_final"] if seconds is not None]
    missed = len(method["seconds_to_grpo_final"]) - len(reached)
    to_final = f"{np.median(reached):.1f}" if reached else "not reached" if improved else "GRPO did not improve"
    updates = [point for point in method["equal_updates"] if point]
    cells = {
        "accuracy before": _accuracy(method, "accuracy_start", 0),
        "accuracy after": _accuracy(method, "accuracy_end", -1),
        "training seconds": f"{np.mean(method['wall_seconds']):.1f}",
        "seconds to GRPO's end": to_final + (f" (not reached: {missed})" if missed and reached else ""),
    }
    cells |= {
        name.replace("_", " "): f"{np.mean(method[name]):,.0f}"
        for name in ("rollouts", "completions_trained", "tokens_trained", "steps")
    }
    cells["at GRPO's steps: accuracy"] = f"{np.mean([p['accuracy'] for p in updates]):.3f}" if updates else ""
    cells["at GRPO's steps: seconds"] = f"{np.mean([p['seconds'] for p in updates]):.1f}" if updates else ""
    return cells


def _accuracy(method: dict[str, Any], name: str, place: int) -> str:
    """Mean over seeds with its interval; of a single seed, the interval over questions."""
    from dppo_lab.statistics import student_interval

    found = student_interval(method[name])
    low, high = found.low, found.high
    if np.isnan(low):
        low, high = (method["curve"][0][place][end] for end in ("low", "high"))
    return f"{found.value:.3f} [{low:.3f}, {high:.3f}]"
