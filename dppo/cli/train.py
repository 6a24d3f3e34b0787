"""``dppo train CONFIG.yaml [--any_field value]``."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dppo.launch import Run, build_parser, dry_run, parse_run, train

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
        console.print(f"{MARKS[finding.kind]} ", end="")
        console.print(finding.text, markup=False)
    return int(any(finding.kind == "wrong" for finding in findings))


def _train(run: Run) -> int:
    columns = (TextColumn("warm-up"), BarColumn(), TextColumn("{task.percentage:3.0f}%  loss {task.fields[loss]:.3f}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr)) as progress:
        bar = progress.add_task("warm-up", total=1.0, loss=float("nan"), visible=False)

        def report(done: float, loss: float) -> None:
            progress.update(bar, completed=done, loss=loss, visible=done < 1)

        trainer = train(run, report)
    if trainer.accelerator.is_main_process:
        print(f"trained {trainer.state.global_step} steps; model and metrics.jsonl are in {run.training.output_dir}")
    return 0
