"""``dppo demo``: TRL's trainer, a control and DPPO on an embedded task, in a few minutes on one core."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dppo.errors import ConfigError


def main(words: Sequence[str]) -> int:
    """Train TRL's own trainer, plain GRPO on packed rows (the control) and DPPO for equal seconds, and compare them."""
    parser = argparse.ArgumentParser(prog="dppo demo", description=main.__doc__)
    parser.add_argument("--output", default="runs/demo", help="folder for curves.png, results.json and the runs")
    parser.add_argument(
        "--seeds", type=int, default=1, help="number of seeds, each with its own warm start (default 1)"
    )
    parser.add_argument("--quick", action="store_true", help="under 90 seconds: a third of the training")
    options = parser.parse_args(words)
    if options.seeds < 1:
        raise ConfigError(f"seeds={options.seeds} must be at least 1. Try dppo demo --seeds 5")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # TRL prints a notice about rollout_func in each run
    import torch

    from dppo.lab.cli.compare import events_shown
    from dppo.lab.cli.words import wide_console
    from dppo.lab.comparison.demo import NARROWEST, SIDES, clear_earlier, demo_comparison, demo_table, last_words
    from dppo.lab.comparison.plan import check_folder
    from dppo.lab.comparison.runner import run_comparison
    from dppo.lab.report import write_accuracy
    from dppo.lab.runs.follow import no_progress_bars
    from dppo.trl.checkpoints.files import sole_writer_of

    torch.set_num_threads(1)
    folder = Path(options.output)
    comparison = demo_comparison(folder, seeds=options.seeds, quick=options.quick)
    check_folder(folder)
    with sole_writer_of(folder), no_progress_bars(), events_shown(SIDES) as told:
        clear_earlier(folder)
        results = run_comparison(comparison, told)
    picture = write_accuracy(folder, folder / "curves.png", SIDES)
    console = wide_console(NARROWEST)
    console.print(demo_table(results))
    for line in last_words(results):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"picture: {picture}; a page with all of it: dppo report {folder}", soft_wrap=True)
    return int(any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"]))
