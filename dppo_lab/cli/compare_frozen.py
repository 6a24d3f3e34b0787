"""``dppo compare --frozen [CONFIG.yaml] [--methods ...] [--rates ...] [--output FILE.json]``."""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from answer_judge.files import write_json
from dppo_lab.cli.progress import open_status
from dppo_lab.cli.words import listed, numbers, read_words, wide_console

METHODS = "trl,dapo,greso,cppo,cppo_trl,cppo_verl,pods,infobatch,dppo_deterministic,dppo_unweighted,dppo_threshold,dppo"
"""The default comparison: every way to prune. Methods with other losses can be named."""

EMBEDDED_PROMPTS = 24
"""Of the embedded task. With fewer prompts, different rates would keep the same number of them."""


def main(words: Sequence[str]) -> int:
    """Print bias and variance of every method at every rate; 1 if one is biased and does not declare it, else 0."""
    config, options, flags = read_words(_parser(), words)
    started = time.perf_counter()
    with open_status(Console(file=sys.stderr), "loading") as progress:
        from dppo.verification.frozen_grid import FrozenSettings, compare_frozen
        from dppo.verification.frozen_lines import CONTROLS
        from dppo_lab.comparison.contestants import choose
        from dppo_lab.comparison.frozen_methods import (
            as_configured,
            configured,
            embedded_training,
            lines_of,
            methods_of,
        )
        from dppo_lab.comparison.plan import read_config

        seeded = [] if options.seed is None else ["--seed", str(options.seed)]
        fields, block = ({}, {}) if config is None else read_config(config, [*flags, *seeded])
        seed = options.seed if config is None or options.seed is not None else fields.get("seed")
        rates = numbers("rates", options.rates, float, example="0.3,0.5,0.7,0.9")
        setting = FrozenSettings(rates=rates, draws=options.draws, seed=seed or 0)
        default = None if block else METHODS
        asked = listed(default if options.methods is None else options.methods)
        contestants = choose(asked and [name for name in asked if name not in CONTROLS], block, fields)
        run = None if config is None else configured(fields)
        build = embedded_training().build_other if run is None else as_configured(run)
        methods = methods_of(contestants, build, fields)
        if run is None:
            from dppo_lab.demo.subject import embedded_subject

            progress("warming up the embedded policy")
            subject = embedded_subject(setting.seed, prompts=EMBEDDED_PROMPTS)
        else:
            from dppo_lab.runs.subject import subject_from_run

            progress("rolling out")
            subject = subject_from_run(run)
        lines = lines_of(contestants, methods, subject, build)
        found = compare_frozen(lines, build("dppo"), setting, started=started, progress=progress)
    from dppo_lab.comparison.frozen_table import NARROWEST, show

    show(found, wide_console(NARROWEST))
    if options.output is not None:
        command = shlex.join(["dppo", "compare", "--frozen", *(word for word in words if word != "--frozen")])
        write_json(options.output, found.as_json(command=command))
    return 0 if found.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dppo compare --frozen",
        usage="dppo compare --frozen [CONFIG.yaml [--any_field value]] [--methods NAMES] [--rates RATES] "
        "[--draws N] [--seed N] [--output FILE.json]",
        description="How far each method's gradient is from the full batch's, and how much it scatters, on rollouts "
        "that stand still: of the embedded policy, or of the model, problems and rewards of a configuration.",
        allow_abbrev=False,
    )
    parser.add_argument("--frozen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--methods", help=f"names with commas between them; default: the configuration's compare block, or {METHODS}"
    )
    parser.add_argument("--rates", default="0.3,0.5,0.7,0.9", help="of prompts and of completions, each in (0, 1)")
    parser.add_argument("--draws", type=int, default=2000, help="per line and rate (default 2000)")
    parser.add_argument("--seed", type=int, help="of policy, rollouts and draws (default: the configuration's, or 0)")
    parser.add_argument("--output", type=Path, help="file to write everything to, as JSON")
    return parser
