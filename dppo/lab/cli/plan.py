"""``dppo plan CONFIG.yaml [--pilot N | --run FOLDER] [--output FILE.json]``, and ``dppo plan --log FILE``."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.lab.cli.words import read_words, wide_console
from dppo.lab.shipped import offered

FORMAT = 2
"""Of ``plan.json``."""
USAGE = """dppo plan CONFIG.yaml [--any_field value] [--pilot N | --run FOLDER] [--output FILE.json]
       dppo plan --log FILE [--generations N]"""
DESCRIPTION = "What a run will cost, and what pruning can save, before it starts. How to read it: dppo docs savings."


def main(words: Sequence[str]) -> int:
    """Print the cost of the run under each option and the advised rates, and write it with ``--output``; 0."""
    parser = argparse.ArgumentParser(prog="dppo plan", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    add = parser.add_argument
    add("--pilot", type=int, metavar="N", help="roll out N prompts and time a few updates (default 32)")
    add("--run", type=Path, metavar="FOLDER", help="read the records of a run, its output_dir")
    add("--log", type=Path, metavar="FILE", help="what exact skipping would have saved in this log")
    add("--generations", type=int, metavar="N", help="completions of a prompt in that run")
    add("--output", type=Path, metavar="FILE.json", help="the plan as JSON")
    config, options, fields = read_words(parser, words)
    if options.log is not None:
        return _log(config, options)
    if config is None:
        raise ConfigError(f"no configuration is named. Try dppo plan {offered('examples/embedded.yaml')}")
    if options.generations is not None:
        raise ConfigError("--generations goes with --log. Try --num_generations, the field of the configuration.")
    if options.pilot is not None and options.run is not None:
        raise ConfigError("--pilot and --run are different sources of the same figures. Name one of them.")
    if options.pilot is not None:  # before TRL is imported, which takes seconds
        from dppo.lab.planning.records import check_pilot

        check_pilot(options.pilot)
    with Console(file=sys.stderr).status("reading") as status:
        from dppo.lab.planning.run_plan import plan_run

        plan = plan_run([config, *fields], pilot=options.pilot, folder=options.run, progress=status.update)
    from dppo.lab.planning.table import NARROWEST, show

    show(plan, wide_console(NARROWEST))
    if options.output is not None:
        write_json(options.output, {"format": FORMAT, **asdict(plan)})
        print(f"wrote {options.output}")
    return 0


def _log(config: str | None, options: argparse.Namespace) -> int:
    """Print the savings that a log shows; 0."""
    named = [name for name in ("pilot", "run", "output") if getattr(options, name) is not None]
    if config is not None or named or (options.generations is not None and options.generations < 2):
        raise ConfigError("--log goes with --generations >= 2 alone. Try dppo plan --log FILE --generations 8")
    from dppo.lab.planning.from_log import lines_of, plan_log
    from dppo.lab.planning.logs import read_log
    from dppo.lab.planning.table import NARROWEST

    console = wide_console(NARROWEST)
    for line in lines_of(plan_log(read_log(options.log), generations=options.generations)):
        console.print(line, markup=False)
    return 0
