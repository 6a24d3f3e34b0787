"""Records in the files of a run: its facts before anything is trained, and generations as lines."""

from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any, cast

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.environment import environment
from dppo.groups import each_group, group_sizes
from dppo.lab.runs.folder import STOCK, CompletionLine, PromptLine, RunFacts
from dppo.methods import METHODS
from dppo.step import StepPlan
from dppo.trl.batch import Padded
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.types import Completions

WHY = ("kept", "not drawn", "zero advantage", "no tokens", "left out by the rule", "not used by the round")
"""Reasons why a completion was kept or dropped, by the first draw of its generation that could have kept it."""


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
        method, steps = trainer.method, trainer.steps_of_prompts
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
    prompts, source = plan.prompts, trainer.session.source
    reward_Q = each_group(lambda reward_QG: reward_QG.nanmean(1), plan.completions.group_N, plan.rewards.total_N)
    return PromptLine(
        step=trainer.state.global_step + 1,
        generation=trainer.session.number - 1,
        epoch=None if source is None else source.stream.epochs,
        rows=[_row(row) for row in prompts.candidates.row_P.tolist()],
        probability=prompts.draw.prob_N.tolist(),
        rolled_out=prompts.draw.keep_N.tolist(),
        mean_reward=_of_candidates(plan, reward_Q),
    )


def _of_candidates(plan: StepPlan, value_Q: Tensor) -> list[float | None]:
    """A figure of each prompt rolled out, in the order of candidates: None for the others."""
    # In order by row: one may be rolled out twice where rounds cross an epoch.
    values: dict[int, list[float]] = {}
    for row, value in zip(plan.prompts.row_Q.tolist(), value_Q.tolist(), strict=True):
        values.setdefault(row, []).append(value)
    pairs = zip(plan.prompts.candidates.row_P.tolist(), plan.prompts.draw.keep_N.tolist(), strict=True)
    return [values[row].pop(0) if keep else None for row, keep in pairs]


def completion_lines(trainer: DPPOTrainer, plan: StepPlan, batch: Padded, most: int) -> list[CompletionLine]:
    """The first whole groups of this process, at most ``most`` completions, but one group where that is not 0.

    The prompt is shown as the model saw it, special tokens included. ``batch`` has this rank's completions.
    """
    completions, group_N, tokenizer = plan.completions, plan.completions.group_N, cast(Any, trainer.processing_class)
    first = trainer.accelerator.process_index * len(batch.prompt_ids)
    size_Q = group_sizes(group_N)
    end_Q = size_Q.cumsum(0)
    whole_Q = (end_Q - size_Q >= first) & (end_Q <= first + len(batch.prompt_ids))  # ranks may share a group
    within_Q = size_Q.where(whole_Q, 0).cumsum(0) <= most
    shown_Q: Tensor = whole_Q & (within_Q | (whole_Q.cumsum(0) == min(most, 1)))
    one_pass = slice(0, trainer.session.passes.shares)  # each completion is in exactly one share
    weight_N, prob_N = plan.weight_UN[one_pass].sum(0), plan.prob_UN[one_pass].sum(0)
    # Of kept completions the advantage that they are trained with, of others that of whole groups.
    advantage_N = torch.where(weight_N > 0, plan.advantage_N, completions.advantage_N)
    used_N = (plan.prompts.weight_Q > 0)[group_N]
    why_N = _why_of(completions, plan.advantage_N, prob_N, weight_N > 0, used_N)
    lines = []
    for place in torch.nonzero(shown_Q[group_N])[:, 0].tolist():
        row, group = place - first, int(group_N[place])
        prompt_ids = batch.prompt_ids[row][batch.prompt_mask[row].bool()]
        completion_ids = batch.completion_ids[row][batch.completion_mask[row].bool()]
        lines.append(
            CompletionLine(
                step=trainer.state.global_step + 1,
                row=_row(int(plan.prompts.row_Q[group])),
                group=group,
                prompt=tokenizer.decode(prompt_ids),
                completion=tokenizer.decode(completion_ids, skip_special_tokens=True),
                reward=float(plan.rewards.total_N[place]),
                advantage=float(advantage_N[place]),
                probability=float((prob_N * plan.prompts.prob_Q[group_N])[place]),
                weight=float(weight_N[place]),
                kept=bool(weight_N[place] > 0),
                why=WHY[int(why_N[place])],
                tokens=int(completions.tokens_N[place]),
            )
        )
    return lines


def _why_of(
    completions: Completions, trained_advantage_N: Tensor, prob_N: Tensor, kept_N: Tensor, used_N: Tensor
) -> Tensor:
    """(N,) indices into ``WHY``."""
    why_N = torch.full_like(kept_N, WHY.index("not drawn"), dtype=torch.int64)
    why_N[prob_N == 0] = WHY.index("left out by the rule")
    why_N[~completions.live_N | (trained_advantage_N == 0)] = WHY.index("zero advantage")
    why_N[completions.tokens_N == 0] = WHY.index("no tokens")
    why_N[~used_N] = WHY.index("not used by the round")
    why_N[kept_N] = WHY.index("kept")
    return why_N


def _row(row: int) -> int | None:
    return row if row >= 0 else None
