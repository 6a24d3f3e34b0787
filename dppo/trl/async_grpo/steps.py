"""An optimizer step of TRL's asynchronous trainer: rolled-out groups in, weighted rows for its loss out.

TRL's loss multiplies an advantage by a ratio that it clips, so a weight >= 0 on the advantage is a weight on the loss:
``min(r w A, clip(r) w A) = w min(r A, clip(r) A)``. It has no other term.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.packing import TreeRow

from dppo.context import StepContext
from dppo.objective import AdvantageRule
from dppo.pruning import SampledTokens
from dppo.pruning.scores import uncertainty
from dppo.session import Session
from dppo.step import RolledOut, StepPlan
from dppo.step.in_flight import Requested
from dppo.trl.async_grpo.worker import RolledGroup
from dppo.types import Rewards

ROUNDING = 1e-6
"""TRL divides by a standard deviation plus 1e-8, so a rounding of equal rewards gives advantages of up to this."""


@dataclass(frozen=True)
class Completion:
    """A completion as the plan sees it: its training rows, end to end from the first token that is trained on."""

    rows: Sequence[RolloutSample]
    group: int

    @cached_property
    def parts(self) -> list[tuple[RolloutSample, int]]:
        """Each row and its first trained token: what is before is its prompt."""
        return [(row, int(np.argmax(row.completion_mask != 0))) for row in self.rows]

    def joined(self, name: str, dtype: torch.dtype) -> Tensor:
        """(T,) an array of all rows after their prompts, end to end."""
        parts = [getattr(row, name)[start:] for row, start in self.parts]
        return torch.as_tensor(np.concatenate(parts) if parts else [], dtype=dtype)


def rolled_out(completions: Sequence[Completion], *, tokens: bool) -> RolledOut:
    """The rollouts of a step for its plan; with ``tokens``, log-probabilities of each too.

    A completion without a row, or without the metric ``reward``, has no reward in the history.
    """
    mask_NT = pad_sequence([each.joined("completion_mask", torch.bool) for each in completions], batch_first=True)
    logp_NT = pad_sequence([each.joined("old_log_probs", torch.float64) for each in completions], batch_first=True)
    reward_N = [each.rows[0].metrics.get("reward", math.nan) if each.rows else math.nan for each in completions]
    group_N = torch.tensor([each.group for each in completions])
    return RolledOut(
        rewards=Rewards(reward_NF=torch.tensor(reward_N, dtype=torch.float64)[:, None], group_N=group_N),
        tokens_N=mask_NT.sum(1),
        uncertainty_N=uncertainty(logp_NT, mask_NT),
        sampled=SampledTokens(logp_NT=logp_NT, mask_NT=mask_NT) if tokens else None,
    )


def given_advantages(completions: Sequence[Completion]) -> AdvantageRule:
    """The advantages that the worker has computed of whole groups, as a rule; those of roundings are 0."""
    advantage_N = torch.tensor([each.rows[0].advantage if each.rows else 0.0 for each in completions]).double()
    advantage_N = advantage_N.masked_fill(advantage_N.abs() < ROUNDING, 0.0)

    def compute(rewards: Rewards, context: StepContext) -> Tensor:
        equal_N = rewards.zero_variance_Q[rewards.group_N] & ~rewards.total_N.isnan()  # of large rewards
        return advantage_N.masked_fill(equal_N, 0.0)

    return AdvantageRule(name="worker", compute=compute)


def planned(
    session: Session, requested: Requested, groups: Sequence[RolledGroup], number: int, done: float
) -> tuple[StepPlan, list[Completion]]:
    """The draws of step ``number``; the history learns from its groups. ``done`` is the share of training done."""
    completions = [Completion(rows, place) for place, group in enumerate(groups) for rows in group.completions]
    found, advantages = rolled_out(completions, tokens=session.method.tokens.active), given_advantages(completions)
    return session.plan(requested.prompts, found, number=number, done=done, advantages=advantages), completions


def weighted_samples(plan: StepPlan, completions: Sequence[Completion]) -> Iterator[dict[str, Any]]:
    """Training rows of the kept completions as TRL's planner has them, with weighted advantages.

    ``advantages`` (T,) are those of each token. If tokens are left out, a row ends at the last one that is drawn.
    """
    cuts = plan.token_draws[0] if plan.token_draws else None
    for place in plan.kept(0).tolist():
        each, offset = completions[place], 0
        advantage = float(plan.advantage_N[place] * plan.weight_UN[0, place])
        for row, start in each.parts:
            weight_T, end = row.completion_mask.astype(float), len(row.input_ids)
            if cuts is not None:
                weight_T[start:] *= cuts.weight_NT[place, offset : offset + end - start].numpy()
                offset += end - start
                if not weight_T.any():
                    continue
                end = int(weight_T.nonzero()[0][-1]) + 1
            yield {
                "input_ids": row.input_ids[:end],
                "completion_mask": (weight_T[:end] != 0).astype(np.int64),
                "old_log_probs": row.old_log_probs[:end],
                "advantage": advantage,
                "advantages": advantage * weight_T[:end],
                "group_id": each.group,
                "metrics": {},
            }


class TokenRow(TreeRow):
    """TRL's row of samples, packed with an advantage for each token."""

    def __init__(self, samples: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__()
        for sample in samples:
            self.add(sample)

    def pack(self) -> dict[str, Tensor]:
        """As TRL's, with the samples' ``advantages``."""
        trained = [each["advantages"][1:][each["completion_mask"][1:] != 0] for each in self.samples]
        return super().pack() | {"advantages": torch.from_numpy(np.concatenate(trained)).float()}


def rows_of(samples: Sequence[dict[str, Any]], ranks: int, *, budget: int | None, per_row: int) -> list[TokenRow]:
    """Rows of some samples, as many for each rank, each with at least one sample; the largest come first.

    A group's samples stay together where they fit: they share their prompt. ``budget`` is the most unique tokens of a
    row; without it a row has about ``per_row`` samples.
    """
    if not samples:
        return []
    tokens: Counter[int] = Counter()
    for sample in samples:
        tokens[sample["group_id"]] += len(sample["input_ids"])
    count = ranks if budget is not None else math.ceil(len(samples) / (per_row * ranks)) * ranks
    rows = [TokenRow() for _ in range(count)]
    for sample in sorted(samples, key=lambda sample: -tokens[sample["group_id"]]):  # those of a group lie together
        fitting = [row for row in rows if (len(row.samples) < per_row if budget is None else row.fits(sample, budget))]
        if not fitting:
            rows += [TokenRow() for _ in range(ranks)]
            fitting = rows[-ranks:]
        home = [row for row in fitting if sample["group_id"] in row.groups]
        min(home or fitting, key=lambda row: row.load).add(sample)
    contents = [list(row.samples) for row in rows]
    for content in contents:
        if not content:  # a rank without a sample must run a forward pass with the others, perhaps of loss 0
            fullest = max(contents, key=len)
            idle = {**fullest[0], "advantage": 0.0, "advantages": np.zeros(len(fullest[0]["input_ids"]))}
            content.append(fullest.pop() if len(fullest) > 1 else idle)
    return sorted(map(TokenRow, contents), key=lambda row: -row.load)
