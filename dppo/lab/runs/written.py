"""What goes into the files of a run: its facts before anything is trained, and generations as lines."""

from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any, cast

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.environment import environment
from dppo.groups import each_group
from dppo.lab.runs.folder import STOCK, CompletionLine, PromptLine, RunFacts
from dppo.lab.runs.generation import WHY, Generation
from dppo.methods import METHODS
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
        method, steps = trainer.method, trainer.steps_of_prompts
        described = {"describe": method.describe(steps), "biased": list(method.biases(steps))}
        return {"method": method.name, "paper": method.paper, **described}
    args = cast(GRPOConfig, trainer.args)
    described = (
        f"TRL's GRPOTrainer as it is: loss_type {args.loss_type}, advantages scaled by {args.scale_rewards}, beta "
        f"{args.beta:g}. Nothing is pruned."
    )
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


def prompt_line(generation: Generation) -> PromptLine:
    """What became of each candidate prompt; rows are null where they are not known."""
    expected = generation.expected
    group_N = torch.arange(len(generation.size_Q)).repeat_interleave(generation.size_Q)
    found = {"mean_reward": each_group(lambda reward_QG: reward_QG.nanmean(1), group_N, generation.reward_N)}
    history: dict[str, list[float | None]] = {}
    if expected is not None and generation.signal_Q is not None:
        found |= {
            "signal": generation.signal_Q,
            "tokens": each_group(lambda tokens_QG: tokens_QG.mean(1), group_N, generation.tokens_N.double()),
        }
        history["expected_signal"] = _known(expected.signal_P, expected.seen_P)
        history["expected_tokens"] = _known(expected.tokens_P, expected.seen_P)
    return PromptLine(
        step=generation.step,
        generation=generation.number,
        epoch=generation.epoch,
        rows=[_row(row) for row in generation.candidate_P.tolist()],
        probability=generation.prob_P.tolist(),
        rolled_out=generation.keep_P.tolist(),
        **{name: _of_candidates(generation, value_Q) for name, value_Q in found.items()},
        **history,
    )


def _of_candidates(generation: Generation, value_Q: Tensor) -> list[float | None]:
    """A figure of each prompt rolled out, in the order of candidates: None for the others."""
    # In order by row: one may be rolled out twice where rounds cross an epoch.
    values: dict[int, list[float]] = {}
    for row, value in zip(generation.row_Q.tolist(), value_Q.tolist(), strict=True):
        values.setdefault(row, []).append(value)
    pairs = zip(generation.candidate_P.tolist(), generation.keep_P.tolist(), strict=True)
    return [values[row].pop(0) if keep else None for row, keep in pairs]


def _known(value_P: Tensor, seen_P: Tensor) -> list[float | None]:
    """Figures to 6 digits, None where nothing was known."""
    return [
        float(f"{value:.6g}") if seen else None for value, seen in zip(value_P.tolist(), seen_P.tolist(), strict=True)
    ]


def completion_lines(generation: Generation, most: int, tokenizer: Any) -> list[CompletionLine]:
    """The first whole groups of this process, at most ``most`` completions, but one group where that is not 0.

    The tokenizer turns ids into text; the prompt is shown as the model saw it, special tokens included.
    """
    first, last = generation.first_row, generation.first_row + len(generation.prompt_ids)
    end_Q = generation.size_Q.cumsum(0)
    whole_Q = (end_Q - generation.size_Q >= first) & (end_Q <= last)  # ranks may share a group
    within_Q = generation.size_Q.where(whole_Q, 0).cumsum(0) <= most
    shown_Q = whole_Q & (within_Q | (whole_Q.cumsum(0) == min(most, 1)))
    group_N = torch.arange(len(end_Q)).repeat_interleave(generation.size_Q)
    lines = []
    for place in shown_Q[group_N].nonzero()[:, 0].tolist():
        row, group = place - first, int(group_N[place])
        prompt = _text(tokenizer, generation.prompt_ids[row], generation.prompt_mask[row], special=True)
        made = _text(tokenizer, generation.completion_ids[row], generation.completion_mask[row], special=False)
        lines.append(
            CompletionLine(
                step=generation.step,
                row=_row(int(generation.row_Q[group])),
                group=group,
                prompt=prompt,
                completion=made,
                reward=float(generation.reward_N[place]),
                advantage=float(generation.advantage_N[place]),
                probability=float(generation.prob_N[place]),
                weight=float(generation.weight_N[place]),
                kept=bool(generation.weight_N[place] > 0),
                why=WHY[int(generation.why_N[place])],
                tokens=int(generation.tokens_N[place]),
            )
        )
    return lines


def _row(row: int) -> int | None:
    return row if row >= 0 else None


def _text(tokenizer: Any, ids_T: Tensor, mask_T: Tensor, *, special: bool) -> str:
    return tokenizer.decode(ids_T[mask_T.bool()], skip_special_tokens=not special)
