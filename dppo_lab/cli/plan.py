"""``dppo plan CONFIG.yaml [--pilot N | --run FOLDER] [--output FILE.json]``, and ``dppo plan --log FILE``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo_lab.cli.words import read_words, wide_console
from dppo_lab.files import explaining
from dppo_lab.runs.words import check_file
from dppo_lab.shipped import offered

NARROWEST = 150
"""Columns that the table needs; where fewer are known, lines wrap."""
LEGEND = (
    "noise: variance of a step's gradient, in second moments, over that of TRL's step; x TRL: at equal steps;",
    "in brackets 95% intervals; equal noise: for as many steps as make up for it; prompts: from the second epoch on.",
)


def main(words: Sequence[str]) -> int:
    """Print what the run will cost under each option and what is worth pruning, and write it with ``--output``; 0."""
    parser = argparse.ArgumentParser(
        prog="dppo plan",
        usage="dppo plan CONFIG.yaml [--any_field value] [--pilot N | --run FOLDER] [--gpu_hour_price X] "
        "[--gpus N] [--watts W] [--output FILE.json]\n       dppo plan --log FILE [--generations N]",
        description="What a run will cost, and what pruning can save, before it starts: seconds, noise, hours, money "
        "for TRL, dense rows, pruning at both levels and small groups. How to read it: docs/savings.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--pilot", type=int, metavar="N", help="roll out N prompts and time a few updates (default 32)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="read the records of a run, its output_dir")
    parser.add_argument("--log", type=Path, metavar="FILE", help="what pruning would have saved in a run with this log")
    parser.add_argument("--generations", type=int, metavar="N", help="completions of a prompt in that run")
    parser.add_argument("--gpu_hour_price", type=float, metavar="X", help="of one GPU for an hour, any currency")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the run (default: its processes)")
    parser.add_argument("--watts", type=float, metavar="W", help="power of one GPU")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="the plan as JSON")
    config, options, fields = read_words(parser, words)
    if options.log is not None:
        return _log(config, options)
    _check(config, options)
    with Console(file=sys.stderr).status("reading") as status:
        from dppo_lab.planning.run_plan import plan_run

        plan = plan_run(
            [str(config), *fields],
            pilot=options.pilot,
            folder=options.run,
            gpus=options.gpus,
            gpu_hour=options.gpu_hour_price,
            watts=options.watts,
            progress=status.update,
        )
    show(plan, wide_console(NARROWEST))
    if options.output is not None:
        from dppo_lab.planning.written import as_json

        with explaining(options.output, "the plan could not be written there: --output plan.json"):
            write_json(options.output, as_json(plan))
        print(f"wrote {options.output}")
    return 0


def _check(config: str | None, options: argparse.Namespace) -> None:
    """Check options before anything is read."""
    if config is None:
        raise ConfigError(f"no configuration is named. Try dppo plan {offered('examples/embedded.yaml')}")
    if options.generations is not None:
        raise ConfigError("--generations goes with --log. Try --num_generations, the field of the configuration.")
    named = [f"--{name}" for name in ("pilot", "run") if getattr(options, name) is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are different sources of the same figures. Name one of them.")
    from dppo_lab.planning.records import Prices, check_pilot

    if options.pilot is not None:
        check_pilot(options.pilot)
    check_file(options.output)
    gpus = 1 if options.gpus is None else options.gpus
    Prices(gpus=gpus, gpu_hour=options.gpu_hour_price, watts=options.watts)


def _log(config: str | None, options: argparse.Namespace) -> int:
    """Print what a log tells; 0."""
    others = ("pilot", "run", "output", "gpus", "gpu_hour_price", "watts")
    named = [name for name in others if getattr(options, name) is not None]
    if config is not None or named or (options.generations is not None and options.generations < 2):
        raise ConfigError(
            "--log stands alone, since a log has no configuration, or with --generations, the completions of a prompt, "
            ">= 2. Try dppo plan --log FILE --generations 8"
        )
    from dppo_lab.planning.from_log import lines_of, plan_log
    from dppo_lab.planning.logs import read_log

    console = wide_console(NARROWEST)
    for line in lines_of(plan_log(read_log(options.log), generations=options.generations)):
        console.print(line, markup=False)
    return 0


def show(plan: Any, console: Console) -> None:
    """Print a plan: its source, the table, what it says, its notes, and what to write into the configuration."""
    from dppo_lab.planning.written import findings, pasted

    for line in (plan.title, plan.source):
        console.print(line, markup=False)
    console.print(_table(plan))
    for line in LEGEND:
        console.print(f"  {line}", markup=False)
    console.print()
    for line in (*findings(plan), *(f"note: {note}" for note in plan.notes)):
        console.print(f"- {line}", markup=False)
    console.print("\nto paste into the configuration:")
    for line in pasted(plan):
        console.print(line, markup=False)


def _table(plan: Any) -> Table:
    from dppo_lab.planning.written import amount

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    words = "s / step,rollout,update,rest,x TRL,noise,hours,equal noise\nhours,\ncompl. k,\ntokens M"
    headings = words.split(",")
    headings += [] if plan.prices.gpu_hour is None else ["price"]
    headings += [] if plan.prices.watts is None else ["kWh"]
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        seconds = row.seconds
        cells = [_cell(row.per_step), amount(seconds.rollout), amount(seconds.update)]
        cells += [amount(seconds.reward + seconds.rest), _cell(row.speedup), _cell(row.noise)]
        cells += [amount(row.hours.value), _cell(row.equal_hours)]
        cells += [amount(row.completions / 1e3), amount(row.tokens / 1e6)]
        cells += [amount(value) for value in (row.price, row.kilowatt_hours) if value is not None]
        table.add_row(row.option.name, *cells)
    return table


def _cell(found: Any) -> str:
    """A figure, and below it its interval where it has one."""
    from dppo_lab.planning.written import amount

    ends = "" if found.low == found.high else f"\n[{amount(found.low)}, {amount(found.high)}]"
    return escape(f"{amount(found.value)}{ends}")
