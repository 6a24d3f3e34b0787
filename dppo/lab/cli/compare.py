"""``dppo compare [CONFIG.yaml] [--methods trl,grpo,dppo] [--seeds 5] [--any_field value]``, and ``--frozen``."""

import argparse
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dppo.files import write_json
from dppo.lab.cli import INTERRUPTED
from dppo.lab.cli.progress import Board, show_status
from dppo.lab.cli.words import PROMPTS, listed, numbers, read_words, wide_console

if TYPE_CHECKING:
    from dppo.lab.comparison.runner import Event

FROZEN = "--frozen"
METHODS = "trl,dapo,greso,cppo,cppo_trl,cppo_verl,pods,infobatch,dppo_deterministic,dppo_unweighted,dppo_threshold,dppo"
"""The default comparison: every way to prune. Methods with other losses can be named."""
USAGE = "dppo compare [CONFIG.yaml] [--methods A,B,...] [--seeds N] [--cpu_seconds [N]] [--any_field value]"
DESCRIPTION = (
    "Train every method from the same start on the same problems, TRL's own trainer among them, and compare them at "
    "equal updates, rollouts and seconds. CONFIG is as for dppo train, with eval_benchmarks; its block compare: "
    "{methods: {name: {method: grpo, any_field: value}}} adds contestants. Without CONFIG: the embedded task. The same "
    "command resumes a stopped comparison. For bias and variance: dppo compare --frozen --help."
)


def main(words: Sequence[str]) -> int:
    """Compare and print the tables: 0 if every run finished, 1 if some failed, 130 if stopped."""
    if FROZEN in words:
        return frozen([word for word in words if word != FROZEN])
    # Abbreviations would take the field --seed for --seeds.
    parser = argparse.ArgumentParser(prog="dppo compare", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("--methods", help="contestants: names of the block, methods, or trl. Default: the whole block")
    add("--seeds", type=int, default=3, help="how many, from the configuration's seed on; default 3")
    add("--target", type=float, help="accuracy whose time is measured. Default: trl's final, per seed")
    cpu = "count CPU seconds of one thread in place of the wall clock, and end each run after N of them"
    add("--cpu_seconds", type=float, nargs="?", const=math.inf, metavar="N", help=cpu)
    add("--overwrite", action="store_true", help="make runs anew whose fields have changed")
    config, options, flags = read_words(parser, words, alone=False)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # TRL prints a notice about rollout_func in each run
    from dppo.lab.comparison.plan import plan
    from dppo.lab.comparison.runner import run_comparison
    from dppo.lab.comparison.table import NARROWEST, show
    from dppo.lab.runs.follow import no_progress_bars

    if options.cpu_seconds is not None:
        import torch

        torch.set_num_threads(1)  # threads that wait count as well
    given = {"seeds": options.seeds, "target": options.target, "seconds": options.cpu_seconds}
    comparison = plan(config, flags, methods=listed(options.methods), **given)
    with no_progress_bars():
        try:
            results = run_comparison(comparison, event_printer(), overwrite=options.overwrite)
        except KeyboardInterrupt:
            command = shlex.join(["dppo", "compare", *words])
            print(f"stopped; the same command goes on from here: {command}", file=sys.stderr)
            return INTERRUPTED
    show(results, wide_console(NARROWEST))
    print(f"\nresults.json and one folder per run are in {comparison.folder}")
    return int(any(run["status"] != "finished" for each in results["methods"].values() for run in each["runs"]))


def event_printer() -> Callable[["Event"], None]:
    """A function that shows each event: a line for all runs together, and one for each."""
    board = Board()

    def told(event: "Event") -> None:
        name = f"{event.number}/{event.runs} {event.name} seed {event.seed}"
        done = 1.0 if event.stage in ("kept", "finished", "failed") else event.step / max(event.steps, 1.0)
        board.update("all runs", (event.number - 1 + done * (event.stage != "warm-up")) / event.runs)
        if event.stage == "warm-up":
            board.update(f"start of seed {event.seed}", event.step, 1.0, event.figures)
        elif event.stage == "train":
            board.update(name, event.step, event.steps, event.figures)
        elif event.stage != "finished":
            print(f"{event.stage} {name}{': ' * bool(event.text)}{event.text}", file=sys.stderr)

    return told


def frozen(words: Sequence[str]) -> int:
    """Print bias and variance of every method at every rate; 1 if one is biased and does not declare it, else 0."""
    config, options, flags = read_words(_frozen_parser(), words)
    started = time.perf_counter()
    show_status("loading")
    from dppo.lab.comparison.contestants import choose
    from dppo.lab.comparison.plan import read_config
    from dppo.lab.frozen.grid import FrozenSettings, compare_frozen
    from dppo.lab.frozen.lines import CONTROLS, as_configured, as_embedded, configured, lines_of, methods_of

    seeded = [] if options.seed is None else ["--seed", str(options.seed)]
    fields, block = ({}, {}) if config is None else read_config(config, [*flags, *seeded])
    seed = options.seed if config is None or options.seed is not None else fields.get("seed")
    rates = numbers("rates", options.rates, example="0.3,0.5,0.7,0.9")
    setting = FrozenSettings(rates=rates, draws=options.draws, seed=seed or 0)
    asked = listed(options.methods or (None if block else METHODS))
    contestants = choose(asked and [name for name in asked if name not in CONTROLS], block, fields)
    run = None if config is None else configured(fields)
    build = as_embedded() if run is None else as_configured(run)
    methods = methods_of(contestants, build, fields)
    if run is None:
        from dppo.lab.demo.subject import embedded_subject

        show_status("warming up the embedded policy")
        # With fewer prompts, different rates would keep the same number of them.
        subject = embedded_subject(setting.seed, prompts=24)
    else:
        from dppo.lab.runs.subject import subject_from_run

        show_status("rolling out")
        subject = subject_from_run(run, options.prompts)
    lines = lines_of(contestants, methods, subject, build)
    found = compare_frozen(lines, setting, started=started, progress=show_status)
    from dppo.lab.frozen.table import NARROWEST, show

    show(found, wide_console(NARROWEST))
    if options.output is not None:
        command = shlex.join(["dppo", "compare", FROZEN, *words])
        write_json(options.output, found.as_json(command=command))
    return 0 if found.passed else 1


def _frozen_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dppo compare --frozen",
        usage="dppo compare --frozen [CONFIG.yaml [--any_field value]] [options]",
        description="Bias and variance of each method's gradient on fixed rollouts: of the embedded policy, or of the "
        "model, problems and rewards of a configuration.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--methods", help=f"names with commas; default: the configuration's compare block, or {METHODS}")
    add("--rates", default="0.3,0.5,0.7,0.9", help="of prompts and of completions, each in (0, 1)")
    add("--prompts", type=int, help=PROMPTS)
    add("--draws", type=int, default=2000, help="per line and rate (default 2000)")
    add("--seed", type=int, help="of policy, rollouts and draws (default: the configuration's, or 0)")
    add("--output", type=Path, help="file to write everything to, as JSON")
    return parser
