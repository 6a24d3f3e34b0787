"""``dppo demo``: TRL's trainer, a control and DPPO on an embedded task, in a minute and a half on one core."""

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
    parser.add_argument("--no-kl", action="store_true", help="without a KL term: there dppo and grpo differ little")
    parser.add_argument("--model", metavar="FOLDER", help="train a chat model on sums, in 20 minutes (see chat_model)")
    options = parser.parse_args(words)
    if options.seeds < 1:
        raise ConfigError(f"seeds={options.seeds} must be at least 1. Try dppo demo --seeds 5")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # TRL prints a notice about rollout_func in each run
    import torch

    from dppo.lab.cli.compare import event_printer
    from dppo.lab.cli.words import wide_console
    from dppo.lab.comparison import demo
    from dppo.lab.comparison.plan import check_folder
    from dppo.lab.comparison.runner import run_comparison
    from dppo.lab.report import write_accuracy
    from dppo.lab.runs.follow import no_progress_bars
    from dppo.trl.checkpoints.files import sole_writer_of

    torch.set_num_threads(1)
    folder = Path(options.output)
    comparison = demo.demo_comparison(folder, seeds=options.seeds, kl=not options.no_kl, model=options.model)
    check_folder(folder)
    print(demo.first_words(comparison), flush=True)
    with sole_writer_of(folder), no_progress_bars():
        demo.clear_earlier(folder)
        results = run_comparison(comparison, event_printer())
    picture = write_accuracy(folder, folder / "curves.png")
    console = wide_console(demo.NARROWEST)
    console.print(demo.demo_table(results))
    for line in (*demo.last_words(results), *([demo.WITHOUT_KL] if options.no_kl else [])):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"picture: {picture}; a page with all of it: dppo report {folder}", soft_wrap=True)
    return int(any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"]))
