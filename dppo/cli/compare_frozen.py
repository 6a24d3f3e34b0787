"""``dppo compare --frozen [CONFIG.yaml] [--methods ...] [--rates ...] [--output FILE.json]``."""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dppo.errors import ConfigError

METHODS = "trl,dapo,cppo,cppo_trl,cppo_verl,pods,infobatch,dppo_deterministic,dppo_threshold,dppo"
"""Compared by default: every way to prune; other losses can be named."""

EMBEDDED_PROMPTS = 24
"""Of the embedded task: with fewer, few rates differ in the whole number of prompts that they keep."""


def main(words: Sequence[str]) -> int:
    """Print bias and variance of every method at every rate; 1 if one is biased that says it is not, else 0."""
    config = words[0] if words and not words[0].startswith("-") else None
    options, fields = _parser().parse_known_args(words if config is None else words[1:])
    if fields and config is None:
        raise ConfigError(
            f"{fields[0]} needs a configuration to change: dppo compare --frozen CONFIG.yaml {' '.join(fields)}"
        )
    if options.output is not None and not options.output.parent.is_dir():
        raise ConfigError(f"--output {options.output}: there is no folder {options.output.parent}. Make it first.")
    started = time.perf_counter()
    with warnings.catch_warnings(), Console(file=sys.stderr).status("loading") as status:
        warnings.simplefilter("ignore", FutureWarning)  # of the libraries about each other
        from dppo.comparison.frozen_grid import Setting, frozen_report
        from dppo.comparison.frozen_methods import check_names, embedded_training, from_training, lines_of

        setting = Setting(rates=_numbers(options.rates), draws=options.draws, seed=options.seed)
        names = [name.strip() for name in options.methods.split(",") if name.strip()]
        check_names(names)
        if config is None:
            from dppo.verification.embedded import embedded_subject

            status.update("warming up the embedded policy")
            subject, training = embedded_subject(setting.seed, prompts=EMBEDDED_PROMPTS), embedded_training()
        else:
            from dppo.launch import parse_run
            from dppo.verification.from_run import subject_from_run

            run = parse_run([config, *fields])
            status.update("rolling out")
            subject, training = subject_from_run(run), run.training
        build = from_training(training)
        lines = lines_of(names, subject, build)
        report = frozen_report(lines, build("dppo"), setting, started=started, progress=status.update)
    from dppo.comparison.frozen_table import NARROWEST, show

    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    show(report, console)
    if options.output is not None:
        command = "dppo compare --frozen" + (f" {config}" if config else "")
        text = json.dumps(report.as_json(command=command), indent=1, allow_nan=False)
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dppo compare --frozen",
        usage="dppo compare --frozen [CONFIG.yaml [--any_field value]] [--methods NAMES] [--rates RATES] "
        "[--draws N] [--seed N] [--output FILE.json]",
        description="How far each method's gradient is from the full batch's, and how much it scatters, on rollouts "
        "that stand still: of the embedded policy, or of the model, problems and rewards of a configuration.",
    )
    parser.add_argument("--frozen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--methods", default=METHODS, help=f"names with commas between them (default {METHODS})")
    parser.add_argument("--rates", default="0.3,0.5,0.7,0.9", help="of prompts and of completions, each in (0, 1)")
    parser.add_argument("--draws", type=int, default=2000, help="per line and rate (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws and of the embedded policy (default 0)")
    parser.add_argument("--output", type=Path, help="file to write everything to, as JSON")
    return parser


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(word) for word in text.split(",") if word.strip()))
    except ValueError as error:
        raise ConfigError(f"--rates {text}: {error}. Write, for example, --rates 0.3,0.5,0.7,0.9") from error
