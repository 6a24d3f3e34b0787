"""Records in the files of a run: its facts before anything is trained, and generations as lines."""

from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any, cast

from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.lab.environment import environment
from dppo.lab.runs.folder import STOCK, PromptLine, RunFacts
from dppo.methods import METHODS
from dppo.step import StepPlan, StepPrompts
from dppo.trl.grpo.trainer import DPPOTrainer


def describe_run(trainer: GRPOTrainer, task: Mapping[str, Any] | None = None) -> RunFacts:
    """Method, task, settings and environment of a run that has begun, with our trainer or TRL's own.

    ``task`` wins over what the trainer knows of its ``model``, ``dataset`` and number of ``prompts``.
    """
    data = trainer.train_dataset
    known = {
        "model": str(trainer.accelerator.unwrap_model(trainer.model).config.name_or_path),
        "dataset": type(data).__name__,
        "prompts": len(data) if isinstance(data, Sized) else None,
    }
    return RunFacts(
        **_method(trainer),
        seed=trainer.args.seed,
        task=known | dict(task or {}),
        config=changed_fields(trainer.args),
        environment=environment(processes=trainer.accelerator.num_processes),
        status="running",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        updates=trainer.args.max_steps if trainer.args.max_steps > 0 else None,
    )


def _method(trainer: GRPOTrainer) -> dict[str, Any]:
    """Name, description, paper and biases of what is trained with."""
    if isinstance(trainer, DPPOTrainer):
        method, steps = trainer.method, trainer.schedule.steps_of_prompts
        described = {"describe": method.describe(steps), "biased": list(method.biases(steps))}
        return {"method": method.name, "paper": method.paper, **described}
    args = cast(GRPOConfig, trainer.args)
    objective = f"loss_type {args.loss_type}, advantages scaled by {args.scale_rewards}, beta {args.beta:g}"
    described = f"TRL's GRPOTrainer as it is: {objective}. Nothing is pruned."
    return {"method": STOCK, "describe": described, "paper": METHODS["grpo"].paper, "biased": []}


def changed_fields(args: Any) -> dict[str, Any]:
    """Fields of a trainer's ``args`` that differ from their defaults, by name; of access tokens only that there is one.

    Fields that are filled in when the arguments are made count as changed.
    """
    shown = args.to_dict()
    changed = {}
    for field in fields(args):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in shown and getattr(args, field.name) != default:
            changed[field.name] = shown[field.name]
    return changed


def prompt_line(trainer: DPPOTrainer, plan: StepPlan) -> PromptLine:
    """The record of a generation's candidate prompts, with null for rows that are not known."""
    prompts, source, groups = plan.prompts, trainer.session.source, plan.completions.group_N
    values = plan.rewards.total_N.tolist(), plan.completions.tokens_N.tolist()
    rewards, tokens = (_of_candidates(prompts, groups, each) for each in values)
    return PromptLine(
        step=trainer.state.global_step + 1,
        generation=trainer.session.number - 1,
        epoch=None if source is None else source.stream.epochs,
        rows=[row if row >= 0 else None for row in prompts.candidates.row_P.tolist()],
        probability=prompts.draw.prob_N.tolist(),
        rolled_out=prompts.draw.keep_N.tolist(),
        rewards=rewards,
        tokens=tokens,
    )


def _of_candidates(prompts: StepPrompts, group_N: Tensor, value_N: list[Any]) -> list[list[Any]]:
    """Values of the completions of each prompt, in the order of candidates; none of those not rolled out."""
    groups: list[list[Any]] = [[] for _ in prompts.row_Q]
    for group, value in zip(group_N.tolist(), value_N, strict=True):
        groups[group].append(value)
    # In order by row: one may be rolled out twice where rounds cross an epoch.
    of_row: dict[int, list[list[Any]]] = {}
    for row, values in zip(prompts.row_Q.tolist(), groups, strict=True):
        of_row.setdefault(row, []).append(values)
    pairs = zip(prompts.candidates.row_P.tolist(), prompts.draw.keep_N.tolist(), strict=True)
    return [of_row[row].pop(0) if keep else [] for row, keep in pairs]
