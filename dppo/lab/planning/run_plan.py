"""The plan of a configuration from one source of figures: what ``dppo plan`` calls."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.lab.planning.costs import free_tokens
from dppo.lab.planning.model import Plan, make_plan
from dppo.lab.planning.observed import observed_run
from dppo.lab.planning.pilot import run_pilot
from dppo.lab.planning.records import PILOT, Length, Step, check_pilot
from dppo.lab.runs.data import at_hand, load_dataset
from dppo.lab.runs.models import model_problems
from dppo.lab.runs.parsing import COMPARISON, Run, given_fields, parse_given
from dppo.lab.runs.preflight import data_problems, raise_all
from dppo.lab.runs.reader import read_run
from dppo.methods import METHODS
from dppo.methods.own import method_named
from dppo.trl.grpo.objective import fields_of
from dppo.trl.grpo.schedule import AccumulationSchedule

RATES = {"completions": 0.5, "prompts": 0.3}
"""Shares that the table shows if a configuration gives none."""


def plan_run(
    words: Sequence[str],
    *,
    pilot: int | None = None,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The plan of a run from its configuration and fields, as for ``dppo train``, and one source of figures.

    ``folder`` is of a run with records; without it ``pilot`` prompts are rolled out, 32 by default.
    """
    fields = given_fields(words)
    fields.pop(COMPARISON, None)  # no part of a run
    run = parse_given({**fields, "dry_run": True})
    raise_all("this plan", [*model_problems(run), *data_problems(run), *_step_problems(run)])
    if run.training.num_generations == 1:
        raise ConfigError("a plan is of groups, and num_generations is 1. Plan with --num_generations 2")
    if folder is None:
        prompts = len(load_dataset(run))
        pilot = pilot_size(pilot, prompts)
        seen, where = run_pilot(fields, pilot, progress=progress), f"a pilot of {pilot} prompts"
    else:
        recorded = read_run(folder)
        noted = recorded.task.get("prompts")
        prompts = dataset_prompts(run) or (noted if isinstance(noted, int) else None)
        seen, where = observed_run(recorded), f"records of {folder}"
    progress("computing")
    step, figures = step_of(run), seen.figures()
    title = f"{run.model.model_name_or_path} on {run.data.dataset_path or run.data.dataset_name}"
    given = {"completions": run.training.completion_prune_rate, "prompts": run.training.prompt_prune_rate}
    return make_plan(
        figures,
        step,
        length_of(run, step, prompts),
        rates=RATES | {level: rate for level, rate in given.items() if isinstance(rate, float) and 0 < rate < 1},
        processes=run.data.processes or seen.processes,
        samples=seen.resampled(),
        title=f"{title}, {step.prompts} prompts x {step.generations} completions a step",
        source=f"{where}: {seen.groups:,} groups, {len(seen.timed):,} timed steps",
        method=pruning_method(run.training.method),
        notes=(*seen.notes, *free_tokens(seen.timed, figures.costs)),
    )


def pilot_size(asked: int | None, prompts: int) -> int:
    """Prompts of a pilot: as many as asked for, or ``PILOT``, of a small training set as many as make two steps."""
    most = prompts - prompts % 2
    if asked is not None and asked > prompts:
        raise ConfigError(f"--pilot {asked}: the training set has {prompts} prompts. Try --pilot {most}")
    size = min(PILOT, most) if asked is None else asked
    check_pilot(size)
    return size


def pruning_method(name: str) -> dict[str, Any]:
    """The fields that add pruning to a method that prunes nothing, on its objective; none for one that prunes."""
    own, other = method_named(name), f"dppo_{name.removesuffix('_loss')}"
    if own.completions.rate or own.prompts.rate or own.tokens.active:
        return {}
    return {"method": other} if other in METHODS else {"method": "dppo", **fields_of(own)}


def step_of(run: Run) -> Step:
    """Sizes of an optimizer step, over all processes of a run."""
    training, asked = run.training, run.training.prune_floor
    cycle = AccumulationSchedule.of_arguments(training, run.data.processes or training.world_size)
    generations = training.num_generations or 1
    return Step(
        prompts=max(round(cycle.completions / cycle.passes.shares / generations), 1),
        generations=generations,
        passes=cycle.passes.passes,
        shares=cycle.passes.shares,
        # A floor that is asked for holds for all.
        **({} if asked is None else {"floor": asked, "least": None}),
        every=bool(training.beta or training.entropy_coef),
        token_power=0.0 if training.loss_type == "grpo" else 1.0,
        scaled="group" if str(training.scale_rewards) in ("group", "True", "true") else "none",
    )


def _step_problems(run: Run) -> list[str]:
    """Optimizer steps that take more than one generation: prices are those of steps within one."""
    steps, accumulated = run.training.steps_per_generation or 1, run.training.gradient_accumulation_steps
    if steps % accumulated == 0:
        return []
    return [
        f"steps_per_generation={steps} and gradient_accumulation_steps={accumulated}: an optimizer step takes parts of "
        f"several generations, which is not planned. Write steps_per_generation: {math.lcm(steps, accumulated)}"
    ]


def length_of(run: Run, step: Step, prompts: int | None) -> Length:
    """Optimizer steps of a run, and those of its first epoch of so many ``prompts``.

    Prompts that do not fill the last generation of an epoch are left out of it, as TRL's sampler does.
    """
    training = run.training
    if prompts is None:
        raise ConfigError(
            f"how long an epoch of {run.data.dataset_name or run.data.dataset_path} is depends on its prompts, and it "
            "is not at hand. Write max_steps: 200"
        )
    epoch = max(prompts // (step.prompts * step.shares), 1) * step.shares * step.passes
    steps = training.max_steps if training.max_steps > 0 else math.ceil(training.num_train_epochs * epoch)
    return Length(steps=steps, first_epoch=min(epoch, steps))


def dataset_prompts(run: Run) -> int | None:
    """Prompts of a run's training set if it is on this machine; None if it would come from the hub."""
    source: Any = run.data.dataset_path or run.data.dataset_name
    if not at_hand(source):
        return None
    try:
        return len(load_dataset(run))
    except OSError as error:
        raise ConfigError(f"dataset {source} cannot be read: {error}") from error
