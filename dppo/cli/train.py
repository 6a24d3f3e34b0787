"""``dppo train CONFIG.yaml [--any_field value]``."""

import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.cli.progress import open_board
from dppo.runs.arguments import Run
from dppo.runs.dry_run import dry_run
from dppo.runs.follow import Follow
from dppo.runs.parsing import build_parser, parse_run
from dppo.runs.parts import train_with
from dppo.trl import DPPOTrainer

MARKS = {
    "ok": "[green]ok       [/]",
    "wrong": "[red]WRONG    [/]",
    "unchecked": "[yellow]unchecked[/]",
    "plan": "plan     ",
}


def main(words: Sequence[str]) -> int:
    """Train, or with ``--dry_run`` check; 0 for success, 1 if a dry run found something wrong."""
    if not words or "-h" in words or "--help" in words:
        print(build_parser().format_help())
        return 0 if words else 2
    run = parse_run(words)
    return _check(run) if run.data.dry_run else _train(run)


def _check(run: Run) -> int:
    findings = dry_run(run)
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"{MARKS[finding.kind]} {escape(finding.text)}")
    return int(any(finding.kind == "wrong" for finding in findings))


def _train(run: Run) -> int:
    board = open_board(
        Console(file=sys.stderr), first=run.training.process_index == 0, plain=bool(run.training.disable_tqdm)
    )
    with board:

        def warm_up(done: float, loss: float) -> None:
            board.update("warm-up", done, figures={"loss": loss})

        def follow(trainer: GRPOTrainer) -> None:
            Follow.instead(trainer, partial(board.update, "train"))

        trainer = train_with(DPPOTrainer, run, warm_up, follow)
    if trainer.accelerator.is_main_process:
        print(f"trained {trainer.state.global_step} steps; model and records are in {run.training.output_dir}")
    trainer.accelerator.end_training()  # a gloo group that is left to the interpreter's exit now and then aborts it
    return 0
