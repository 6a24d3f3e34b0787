"""``dppo compare [CONFIG.yaml] [--methods trl,grpo,dppo] [--seeds 5] [--any_field value]``, and ``--frozen``."""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from dppo_lab.cli import INTERRUPTED
from dppo_lab.cli.progress import open_board
from dppo_lab.cli.words import listed, read_words, wide_console

if TYPE_CHECKING:
    from dppo_lab.comparison.runner import Event

FROZEN = "--frozen"
DESCRIPTION = (
    "Train every method from the same start on the same problems, TRL's own trainer among them, and show what each "
    "reaches at equal updates, rollouts and seconds. CONFIG is a configuration for dppo train with eval_benchmarks; a "
    "block compare: {methods: {name: {method: grpo, any_field: value}}} adds contestants. Without CONFIG a short "
    "comparison on the embedded task. The same command goes on where a stopped one was. All other flags are fields, as "
    "for dppo train. --frozen measures bias and variance instead of training: dppo compare --frozen --help."
)


def main(words: Sequence[str]) -> int:
    """Compare and print the tables: 0 if every run finished, 1 if some failed, 130 if stopped."""
    if FROZEN in words:
        from dppo_lab.cli.compare_frozen import main as frozen

        return frozen([word for word in words if word != FROZEN])
    # Abbreviations would take the field --seed for --seeds.
    parser = argparse.ArgumentParser(
        prog="dppo compare",
        usage="dppo compare [CONFIG.yaml] [--methods A,B,...] [--seeds N] [--any_field value]",
        description=DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("--methods", help="contestants: names of the block, methods, or trl. Default: the whole block")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from the configuration's seed on; default 3")
    parser.add_argument("--target", type=float, help="accuracy whose time is measured. Default: trl's final, per seed")
    parser.add_argument("--overwrite", action="store_true", help="make runs anew whose fields have changed")
    config, options, flags = read_words(parser, words, alone=False)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # TRL prints a notice about rollout_func in each run
    from dppo_lab.comparison.plan import plan
    from dppo_lab.comparison.runner import run_comparison
    from dppo_lab.comparison.table import NARROWEST, show
    from dppo_lab.runs.follow import no_progress_bars

    comparison = plan(config, flags, methods=listed(options.methods), seeds=options.seeds, target=options.target)
    with no_progress_bars(), events_shown() as told:
        try:
            results = run_comparison(comparison, told, overwrite=options.overwrite)
        except KeyboardInterrupt:
            command = shlex.join(["dppo", "compare", *words])
            print(f"stopped; the same command goes on from here: {command}", file=sys.stderr)
            return INTERRUPTED
    show(results, wide_console(NARROWEST))
    print(f"\nresults.json and one folder per run are in {comparison.folder}")
    return int(any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"]))


@contextlib.contextmanager
def events_shown(names: Mapping[str, str] | None = None) -> Iterator[Callable[["Event"], None]]:
    """A function that shows each event: a line for all runs together, and one for each, under its name in ``names``."""
    console = Console(file=sys.stderr)
    ended: dict[str, float] = dict.fromkeys(("kept", "finished", "failed"), 1.0)
    with open_board(console) as board:

        def told(event: "Event") -> None:
            name = f"{event.number}/{event.runs} {(names or {}).get(event.name, event.name)} seed {event.seed}"
            done = ended.get(event.stage, 0.0 if event.stage == "warm-up" else event.step / max(event.steps, 1.0))
            board.update("all runs", (event.number - 1 + done) / event.runs)
            if event.stage == "warm-up":
                board.update(f"start of seed {event.seed}", event.step, 1.0, event.figures)
            elif event.stage == "train":
                board.update(name, event.step, event.steps, event.figures)
            elif event.stage != "finished":
                console.print(
                    f"{event.stage} {name}{': ' * bool(event.text)}{event.text}", markup=False, soft_wrap=True
                )

        yield told
