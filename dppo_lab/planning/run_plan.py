"""The plan of a configuration from one source of figures: what ``dppo plan`` calls."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from answer_judge.problems.loading import is_local
from dppo.errors import ConfigError
from dppo.trl.grpo.plan import generation_sizes
from dppo_lab.planning.by_hand import read_figures
from dppo_lab.planning.costs import free_tokens
from dppo_lab.planning.model import Plan, make_plan
from dppo_lab.planning.observed import Observed, observed_run
from dppo_lab.planning.pilot import run_pilot
from dppo_lab.planning.records import FLOOR, Length, Prices, Step
from dppo_lab.runs.arguments import Run
from dppo_lab.runs.embedded import TASKS
from dppo_lab.runs.parsing import parse_run, read_file, read_flags
from dppo_lab.runs.parts import load_dataset
from dppo_lab.runs.reader import read_run
from dppo_lab.runs.words import split_words

RATES = (0.5, 0.3)
"""Share of completions and of prompts to prune where a configuration gives no rates."""


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
        ConfigError: a field is wrong, a source is missing or does not fit, or its timings are too noisy.
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
    figures = seen.figures(limit)
    found = (f"found in the records, by the run's own score: {row}" for row in seen.ceilings)
    return make_plan(
        figures, seen.resampled(limit), step, length, prices, rates_of(run), title=title, source=source,
        notes=(*seen.notes, *free_tokens(seen.timed, figures.costs), *found),
    )  # fmt: skip


def _seen(
    words: Sequence[str], pilot: int | None, folder: Path | None, progress: Callable[[str], None]
) -> tuple[Observed, str]:
    """What was measured, and where."""
    if folder is not None:
        seen, source = observed_run(read_run(folder)), f"records of {folder}"
    else:
        path, flags = split_words(words)
        fields = (read_file(path) if path else {}) | read_flags(flags)
        seen, source = run_pilot(fields, pilot or 0, progress=progress), f"a pilot of {pilot} prompts"
    return seen, f"{source}: {len(seen.groups):,} groups, {len(seen.timed):,} timed steps"


def step_of(run: Run) -> Step:
    """Sizes of an optimizer step, over all processes of a run."""
    training = run.training
    completions, cycle = generation_sizes(training, run.data.processes or training.world_size)
    generations = training.num_generations or 1
    return Step(
        prompts=max(round(completions / cycle.passes.shares / generations), 1),
        generations=generations,
        passes=cycle.passes.passes,
        shares=cycle.passes.shares,
        floor=training.prune_floor or FLOOR,
        token_power=0.0 if training.loss_type == "grpo" else 1.0,
        scaled="group" if str(training.scale_rewards) in ("group", "True", "true") else "none",
    )


def length_of(run: Run, step: Step, prompts: int | None) -> Length:
    """How many optimizer steps a run takes, and how many of them are its first epoch.

    Raises:
        ConfigError: the number of ``prompts`` of the training set decides and is not known.
    """
    training = run.training
    if prompts is None:
        raise ConfigError(
            f"how long an epoch of {run.data.dataset_name or run.data.dataset_path} is depends on its prompts, and it "
            "is not at hand. Write their number into the figures: dataset_prompts: 12000"
        )
    epoch = max(math.ceil(prompts / step.prompts) * step.passes, 1)
    steps = training.max_steps if training.max_steps > 0 else math.ceil(training.num_train_epochs * epoch)
    return Length(steps=steps, first_epoch=min(epoch, steps))


def rates_of(run: Run) -> tuple[float, float]:
    """Share of completions and of prompts that a configuration prunes, ``RATES`` where it gives no number above 0."""
    given = (run.training.completion_prune_rate, run.training.prompt_prune_rate)
    completion, prompt = (_rate(rate, other) for rate, other in zip(given, RATES, strict=True))
    return completion, prompt


def _rate(rate: Any, otherwise: float) -> float:
    return float(rate) if isinstance(rate, int | float) and 0 < rate < 1 else otherwise


def dataset_prompts(run: Run) -> int | None:
    """Prompts of a run's training set where it is on this machine; None where it would come from the hub."""
    source: Any = run.data.dataset_path or run.data.dataset_name
    if source not in TASKS and not is_local(source):
        return None
    if source not in TASKS and not Path(source).exists():
        raise ConfigError(f"dataset {source}: no such file. Write dataset_path: FILE.jsonl")
    try:
        return len(load_dataset(run))
    except OSError as error:
        raise ConfigError(f"dataset {source} cannot be read: {error}") from error


def _prompts(run: Run, folder: Path) -> int | None:
    """Prompts of the training set, from the configuration or else from the records of the run."""
    there = dataset_prompts(run)
    recorded = read_run(folder).task.get("prompts") if there is None else None
    return recorded if isinstance(recorded, int) else there
