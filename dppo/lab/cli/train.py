"""``dppo train CONFIG.yaml [--any_field value]``."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dppo.lab.cli import INTERRUPTED
from dppo.lab.cli.progress import Board
from dppo.lab.runs.fields import RunArguments
from dppo.lab.runs.reader import is_run
from dppo.lab.runs.words import check_config, split_words
from dppo.settings import OwnSettings, with_default

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

    from dppo.lab.runs.parsing import Run

USAGE = "dppo train CONFIG.yaml [--any_field value]"
DESCRIPTION = (
    "Fields of the file and flags are the same, and flags win. Every other command that takes a configuration takes "
    "them too. The fields of TRL and transformers are fields here as well: --help_all lists them."
)
GROUPS = {"what to train on, and how it is judged": RunArguments, "pruning, and what the method fills in": OwnSettings}


def main(words: Sequence[str]) -> int:
    """Train, or with ``--dry_run`` check; 0 for success, 1 if a dry run found something wrong, 130 if stopped."""
    if not words or {"-h", "--help", "--help_all"} & {*words}:
        print(full_help() if "--help_all" in words else short_help())
        return 0 if words else 2
    config, _ = split_words(words)
    if config is not None:
        check_config(config)  # before the imports that take seconds
    from dppo.lab.runs.parsing import parse_run

    run = parse_run(words)
    if run.data.dry_run:
        from dppo.lab.runs.dry_run import dry_run

        findings = dry_run(run)
        for finding in findings:
            print(f"{'WRONG' if finding.kind == 'wrong' else finding.kind:9} {finding.text}")
        return int(any(finding.kind == "wrong" for finding in findings))
    try:
        return _train(run)
    except KeyboardInterrupt:
        if run.training.process_index == 0:
            print(f"\n{_stopped(run, shlex.join(['dppo', 'train', *words]))}", file=sys.stderr)
        return INTERRUPTED


def short_help() -> str:
    """Our fields; neither torch nor TRL is imported, so that it comes at once."""
    parser = argparse.ArgumentParser(prog="dppo train", usage=USAGE, description=DESCRIPTION)
    parser.add_argument("--help_all", action="store_true", help="every field")
    for title, kind in GROUPS.items():
        group = parser.add_argument_group(title)
        for each in fields(cast(Any, kind)):
            shown = with_default(each.metadata["help"], each.default)
            group.add_argument(f"--{each.name}", metavar="VALUE", help=shown)
    return parser.format_help()


def full_help() -> str:
    """Every field, with TRL's own texts."""
    from dppo.lab.runs.parsing import build_parser

    parser = build_parser()
    parser.usage, parser.description = USAGE, DESCRIPTION
    return parser.format_help()


def _stopped(run: "Run", command: str) -> str:
    """The last line of a stopped run: where it goes on from, and with which command."""
    from dppo.trl.checkpoints.files import latest_checkpoint

    command = command if run.training.world_size == 1 else "the same launch of dppo train"
    folder = Path(run.training.output_dir or "")
    checkpoint = latest_checkpoint(folder)
    if checkpoint is not None:
        return f"stopped; it goes on from {checkpoint} with: {command}{' --resume' * (not run.data.resume)}"
    begun = is_run(folder) and not run.data.overwrite
    never = "save_strategy=no" if run.training.save_strategy == "no" else f"save_steps={run.training.save_steps:g}"
    return f"stopped before a checkpoint ({never}); it starts again with: {command}{' --overwrite' * begun}"


def _train(run: "Run") -> int:
    from dppo.lab.runs.follow import Follow
    from dppo.lab.runs.parts import train_with
    from dppo.trl import DPPOTrainer

    board, first = Board(), run.training.process_index == 0

    def warm_up(done: float, loss: float) -> None:
        board.update("warm-up", done, figures={"loss": loss})

    def follow(trainer: "GRPOTrainer") -> None:
        Follow.instead(trainer, partial(board.update, "train") if first else lambda *_: None)

    trainer = train_with(DPPOTrainer, run, warm_up if first else None, follow)
    if trainer.accelerator.is_main_process:
        folder = run.training.output_dir or "."
        state = trainer.state
        print(f"trained for {state.global_step} of {state.max_steps} steps; model and records are in {folder}")
        print(f"one page about it: dppo report {shlex.quote(folder)}")
    return 0
