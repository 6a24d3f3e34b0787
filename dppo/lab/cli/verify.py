"""``dppo verify [CONFIG.yaml [--prompts N]] [--output FILE.json]``."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.lab.cli.progress import show_status
from dppo.lab.cli.words import PROMPTS, read_words, wide_console

if TYPE_CHECKING:
    from dppo.lab.frozen.variance import VarianceRow
    from dppo.methods import Method
    from dppo.verification.checks import Check
    from dppo.verification.subject import Subject

SECTIONS = {
    "1": "1 Completion pruning is unbiased",
    "2": "2 Prompt pruning, and both levels together, are unbiased",
    "3": "3 The trainer computes what TRL does, dense rows what padding does",
    "4": "4 Rows are kept with the stated probabilities",
    "5": "5 Controls: known to be wrong, so they pass above the bound",
}
MEANINGS = {
    "relative bias": "|E[pruned gradient] - full gradient| / |full gradient|, over every outcome of the draws, float64",
    "squared bias": "the square of it, estimated from draws: about 0 give or take its standard error without a bias",
    "difference": "|gradient - expected| / |expected| in float32; for TRL, that of the loss too if it is larger",
    "nats": "largest difference of a token's log-probability between dense rows and padding, in float32",
    "layers": "layers with a sliding window in padding alone",
    "deviation": "largest distance of an inclusion frequency from its stated probability, in standard deviations",
}
"""Meanings of the ``UNITS`` of ``dppo.verification.checks``, which needs torch: help comes without it."""
TABLE_LEGEND = (
    "variance: E|pruned - full|^2 / |full|^2 of one draw; rows: (sum w)^2 / sum w^2; weight: the largest.",
    "abs(A): the advantage; length: in tokens; s: sqrt(sum (1 - p)^2), p the probability of a sampled token;",
    "oracle: the true gradient norms. Scores are per token where the normaliser takes a mean over tokens.",
    "A dash: the rule keeps more than that at any rate. *: with a bias, which no number of draws removes.",
)
DRAWS = 1000
NARROWEST = 130


def main(words: Sequence[str]) -> int:
    """Verify and print every check. 0 if all checks passed, 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="dppo verify",
        usage="dppo verify [CONFIG.yaml [--prompts N] [--any_field value]] [--output FILE.json]",
        description="Check that pruning leaves the expected gradient unchanged, and estimate the most that it can "
        "save: on the built-in model, or on the model, problems and rewards of a configuration for dppo train.",
    )
    parser.add_argument("--prompts", type=int, help=PROMPTS)
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"of each kind on the model (default {DRAWS})")
    parser.add_argument("--variance", action="store_true", help="print what pruning costs in variance too, by score")
    parser.add_argument("--output", type=Path, help="file to write everything to, as JSON")
    config, options, fields = read_words(parser, words)
    if options.draws < 8:
        raise ConfigError(
            f"--draws {options.draws}: a bias is estimated from 8 or more. Try dppo verify --draws {DRAWS}"
        )
    if config is None and options.prompts is not None:
        raise ConfigError("--prompts is for the model of a configuration: dppo verify CONFIG.yaml --prompts 16")
    return _verify(config, fields, options)


def _verify(config: str | None, fields: Sequence[str], options: argparse.Namespace) -> int:
    started = time.perf_counter()
    show_status("loading")
    from dppo.environment import one_thread
    from dppo.lab.environment import environment
    from dppo.lab.frozen.variance import pilot_ceilings, variance_table
    from dppo.methods import ALL_TOKENS
    from dppo.objective import DR_GRPO
    from dppo.verification.checks import FAILURE_RATE
    from dppo.verification.verify import described, verify

    subject, methods, steps = _subject(config, fields, options.prompts)
    checks = verify(subject, methods, draws=options.draws, progress=show_status)
    first, variance = replace(methods[0], tokens=ALL_TOKENS), ()
    if options.variance:
        show_status("variance")
        with one_thread():
            variance = variance_table(subject, [replace(first, normaliser=DR_GRPO), first])
    ceilings = pilot_ceilings(subject, first)
    seconds = time.perf_counter() - started
    console = wide_console(NARROWEST)
    about = described(subject, methods)
    console.print(f"{about}\n", markup=False)
    console.print(_checks(checks))
    for name, meaning in MEANINGS.items():
        console.print(f"  {name}: {meaning}", markup=False)
    console.print(f"  A build without faults fails any of the checks that draw at a rate of {FAILURE_RATE:g}.\n")
    for normaliser in dict.fromkeys(row.normaliser for row in variance):
        console.print(_variance(normaliser, [row for row in variance if row.normaliser == normaliser]))
    for line in (
        *(TABLE_LEGEND if variance else ()),
        *(f"pilot: {row}, from {row.units} {row.level}" for row in ceilings),
    ):
        console.print(f"  {line}", markup=False)
    for reason in (reason for method in methods for reason in method.biases(steps)):
        console.print(f"[yellow]declared[/] {escape(reason)}")
    failed = sum(not check.passed for check in checks)
    verdict = f"[red]FAIL[/] {failed} of" if failed else "[green]PASS[/] all"
    console.print(f"\n{verdict} {len(checks)} checks, {seconds:.0f} s")
    if options.output is not None:
        tables = {"checks": checks, "variance": variance, "ceilings": ceilings}
        written = {name: [asdict(row) for row in rows] for name, rows in tables.items()}
        facts = {"subject": about, "passed": not failed, "failure_rate": FAILURE_RATE}
        write_json(options.output, {**facts, **written, "environment": environment(), "seconds": round(seconds, 1)})
    return 1 if failed else 0


def _subject(
    config: str | None, fields: Sequence[str], prompts: int | None
) -> "tuple[Subject, tuple[Method, ...], int]":
    """Rollouts to verify on, the methods, and the optimizer steps that one draw of prompts serves."""
    if config is None:
        from dppo.lab.demo.subject import embedded_subject
        from dppo.methods import METHODS

        show_status("warming up the embedded policy")
        return embedded_subject(), (METHODS["dppo"], METHODS["dppo_threshold"]), 1
    from dppo.lab.runs.parsing import parse_run
    from dppo.lab.runs.subject import subject_from_run
    from dppo.trl.grpo.schedule import AccumulationSchedule

    run = parse_run([config, *fields])
    schedule = AccumulationSchedule.of_arguments(run.training, run.data.processes or run.training.world_size)
    show_status("rolling out")
    subject = subject_from_run(run, prompts)
    method = run.training.build_method(sampler_log_probs=run.sampler_log_probs, model_config=subject.model.config)
    return subject, (method,), schedule.steps_of_prompts


def _checks(checks: "Sequence[Check]") -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "left", "right", "left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for key, title in SECTIONS.items():
        table.add_row("", f"[bold]{title}[/]")
        for check in (check for check in checks if check.name.startswith(key)):
            verdict = "[green]PASS[/]" if check.passed else "[red]FAIL[/]"
            relation = "<=" if check.figure <= check.bound else ">"
            cells = (f"{check.figure:.2g}", relation, f"{check.bound:.2g}", check.what)
            table.add_row(verdict, check.name[2:], *cells)
    return table


def _variance(normaliser: str, rows: "Sequence[VarianceRow]") -> Table:
    from dppo.lab.comparison.table import figures_table

    keeps = dict.fromkeys(row.keep for row in rows)
    headings = [heading for keep in keeps for heading in (f"keep {keep:g}\nvariance", "\nrows", "\nweight")]
    table = figures_table(["rule", "score"], headings)
    table.title = f"Cost of pruning completions under the {normaliser} normaliser"
    table.title_justify, table.title_style = "left", "bold"
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        cells.setdefault((row.rule, row.score), []).extend(
            (
                _cell(row.added_variance, 3) + ("*" if row.biased else " "),
                _cell(row.effective_rows, 0),
                _cell(row.largest_weight, 1),
            )
        )
    for name, figures in cells.items():
        table.add_row(*name, *figures)
    return table


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
