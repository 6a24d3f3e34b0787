"""What a configuration asks for, as sizes of a step and the length of a run."""

import math
from pathlib import Path
from typing import Any

from answer_judge.problems.loading import is_local
from dppo.errors import ConfigError
from dppo.trl.grpo.plan import generation_sizes
from dppo_lab.planning.outcome import Length
from dppo_lab.planning.records import FLOOR, Step
from dppo_lab.runs.arguments import Run
from dppo_lab.runs.embedded import TASKS
from dppo_lab.runs.parts import load_dataset

RATES = (0.5, 0.3)
"""Share of completions and of prompts to prune where a configuration gives no rates."""


def step_of(run: Run) -> Step:
    """Sizes of an optimizer step, over all processes of a run.

    Args:
        run: as ``dppo train`` would train it.
    """
    training = run.training
    completions, cycle = generation_sizes(training, run.data.processes or training.world_size)
    generations = training.num_generations or 1
    averaged = training.loss_type == "grpo"
    return Step(
        prompts=max(round(completions / cycle.passes.shares / generations), 1),
        generations=generations,
        passes=cycle.passes.passes,
        shares=cycle.passes.shares,
        floor=training.prune_floor or FLOOR,
        token_power=0.0 if averaged else 1.0,
        scaled="group" if str(training.scale_rewards) in ("group", "True", "true") else "none",
    )


def length_of(run: Run, step: Step, prompts: int | None) -> Length:
    """How many optimizer steps a run takes, and how many of them are its first epoch.

    Args:
        run: as ``dppo train`` would train it.
        step: its sizes.
        prompts: of the training set; None where it is not at hand.

    Raises:
        ConfigError: the number of prompts decides and is not known.
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


def dataset_prompts(run: Run) -> int | None:
    """Prompts of a run's training set where it is at hand; None where it would come from the hub."""
    source: Any = run.data.dataset_path or run.data.dataset_name
    if source not in TASKS and not is_local(source):
        return None
    if source not in TASKS and not Path(source).exists():
        raise ConfigError(f"dataset {source}: no such file. Write dataset_path: FILE.jsonl")
    try:
        return len(load_dataset(run))
    except OSError as error:
        raise ConfigError(f"dataset {source} cannot be read: {error}") from error


def _rate(rate: Any, otherwise: float) -> float:
    return float(rate) if isinstance(rate, int | float) and 0 < rate < 1 else otherwise
