"""The plan of a configuration from one source of figures: what ``dppo plan`` calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dppo_lab.planning.by_hand import read_figures
from dppo_lab.planning.model import make_plan
from dppo_lab.planning.observed import Observed, observed_run
from dppo_lab.planning.outcome import Plan, Prices
from dppo_lab.planning.pilot import run_pilot
from dppo_lab.planning.sizing import dataset_prompts, length_of, rates_of, step_of
from dppo_lab.runs.arguments import Run
from dppo_lab.runs.parsing import parse_run, read_file, read_flags
from dppo_lab.runs.reader import read_run
from dppo_lab.runs.words import split_words


def plan_run(
    words: Sequence[str],
    *,
    pilot: int | None = None,
    folder: Path | None = None,
    by_hand: Path | None = None,
    gpus: int | None = None,
    gpu_hour: float | None = None,
    watts: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The plan of a run.

    Args:
        words: its configuration and fields, as for ``dppo train``.
        pilot: prompts to roll out for figures.
        folder: of a run whose records have them.
        by_hand: a file with them; of these three one is given.
        gpus: that the run will be on; None for the processes of the configuration, or of the records.
        gpu_hour: price of one of them for an hour.
        watts: of one of them.
        progress: told what is being done.

    Raises:
        ConfigError: something of this does not fit, or is not there.
        DataError: the training set cannot be read.
    """
    run = parse_run([*words, "--dry_run"])
    step, limit = step_of(run), float(run.training.max_completion_length or 1e9)
    prices = Prices(gpus=gpus or run.data.processes or 1, gpu_hour=gpu_hour, watts=watts)
    title = f"{run.model.model_name_or_path} on {run.data.dataset_path or run.data.dataset_name}"
    title = f"{title}, {step.prompts} prompts x {step.generations} completions a step"
    if by_hand is not None:
        given = read_figures(by_hand)
        length = length_of(run, step, given.dataset_prompts or dataset_prompts(run))
        figures = given.figures(limit)
        return make_plan(
            figures, [], step, length, prices, rates_of(run), title=title, source=f"figures given by hand in {by_hand}",
            estimate=True, notes=given.said(),
        )  # fmt: skip
    length = length_of(run, step, dataset_prompts(run) if folder is None else _prompts(run, folder))
    seen, source = _seen(words, pilot, folder, progress)
    progress("computing")
    if gpus is None and run.data.processes is None:
        prices = replace(prices, gpus=seen.processes)
    return make_plan(
        seen.figures(limit), seen.resampled(limit), step, length, prices, rates_of(run), title=title, source=source,
        notes=(*seen.notes, *(f"found in the records, by the run's own score: {row}" for row in seen.ceilings)),
    )  # fmt: skip


def _seen(
    words: Sequence[str], pilot: int | None, folder: Path | None, progress: Callable[[str], None]
) -> tuple[Observed, str]:
    """What was seen, and where."""
    if folder is not None:
        seen = observed_run(read_run(folder))
        return seen, f"records of {folder}: {len(seen.groups):,} groups, {len(seen.timed):,} timed steps"
    path, flags = split_words(words)
    fields = (read_file(path) if path else {}) | read_flags(flags)
    seen = run_pilot(fields, pilot or 0, progress=progress)
    return seen, f"a pilot of {pilot} prompts: {len(seen.groups):,} groups, {len(seen.timed):,} timed steps"


def _prompts(run: Run, folder: Path) -> int | None:
    """Prompts of the training set, from the configuration or else from the records of the run."""
    there = dataset_prompts(run)
    recorded = read_run(folder).task.get("prompts") if there is None else None
    return recorded if isinstance(recorded, int) else there
