"""``dppo values CONFIG.yaml [--samples 8] [--beta1 0.5]``."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from dppo.errors import ConfigError
from dppo_lab.cli import INTERRUPTED
from dppo_lab.cli.words import read_words
from dppo_lab.shipped import offered


def main(words: Sequence[str]) -> int:
    """Estimate the value of every prompt of a run and write it; 0, 1 if all values are 0, 130 if stopped."""
    parser = argparse.ArgumentParser(
        prog="dppo values",
        usage="dppo values CONFIG.yaml [--any_field value] [--samples N] [--beta1 X] [--engine NAME]",
        description="What the run's model does on each training prompt before it is trained: the value V* for "
        "method: a_star_po, and the prior of prompt histories. Written where prompt_values says, or beside the "
        "dataset. Stopped, it goes on from there when the same command is given again. docs/a_star_po.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--samples", type=int, default=8, help="completions per prompt (default 8)")
    parser.add_argument("--beta1", type=float, default=0.5, help="temperature of the value, > 0 (default 0.5)")
    parser.add_argument("--engine", default="transformers", help="transformers (default) or vllm")
    parser.add_argument("--batch_size", type=int, help="completions at once (default: the engine's)")
    config, options, fields = read_words(parser, words)
    if config is None:
        raise ConfigError(f"no configuration is named. Try dppo values {offered('examples/a_star_po.yaml')}")
    from dppo_lab.runs.parsing import parse_run
    from dppo_lab.runs.values import estimate_values, values_path

    run = parse_run([config, *fields])
    path = values_path(run)
    try:
        with Progress(console=Console(file=sys.stderr)) as bars:
            bar = bars.add_task("samples", total=None)
            found = estimate_values(
                run,
                samples=options.samples,
                beta=options.beta1,
                engine=options.engine,
                batch_size=options.batch_size,
                report=lambda done, total: bars.update(bar, completed=done, total=total),
            )
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from what is in {path}.samples", file=sys.stderr)
        return INTERRUPTED
    print(f"values of {found.prompts} prompts are in {path}; {found.drawn} samples were drawn now")
    print(f"mean reward {found.mean:.3f}; no sample of {found.failed} prompts had a reward: their value is 0")
    if found.failed == found.prompts:
        print(
            "dppo values: no sample had a reward, so all values are 0 and say nothing. Look at the reward function, or "
            "draw more: --samples 64",
            file=sys.stderr,
        )
        return 1
    return 0
