"""Between TRL's tensors of one rank and the step's records of all ranks."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.pruning import confidence
from dppo.step import RolledOut, StepPlan
from dppo.trl.batch import RankBatch
from dppo.types import Rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedBatch:
    """What TRL rolled out for one call on this rank, and the rewards of all ranks."""

    prompt_ids: Tensor
    """(B, Tp) left-padded."""
    prompt_mask: Tensor
    """(B, Tp)."""
    completion_ids: Tensor
    """(B, T) right-padded."""
    completion_mask: Tensor
    """(B, T), what is attended to."""
    tool_mask: Tensor | None
    """(B, T), 0 where a tool wrote a token; None where there were no tools."""
    sampler_logp: Tensor | None
    """(B, T) log-probabilities as the rollout engine reported them; None where it does not."""
    reward_NF: Tensor
    """(N, F) rewards of all ranks in rank order, on the CPU; NaN where a function gave none."""


Gather = Callable[[Tensor], Tensor]
"""Concatenates a tensor over ranks, in rank order."""


def read_examples(
    dataset: Sequence[dict[str, Any]], row_Q: Tensor, *, generations: int | Tensor, rank: int, processes: int
) -> list[dict[str, Any]]:
    """This rank's equal, contiguous slice of some rows, each repeated for every completion."""
    rows = np.repeat(row_Q.numpy(), generations if isinstance(generations, int) else generations.numpy())
    size = len(rows) // processes
    here = rows[rank * size : (rank + 1) * size].tolist()
    read = {row: dataset[row] for row in set(here)}  # reading a row costs more than copying it
    return [copy.deepcopy(read[row]) for row in here]


def loss_mask(generated: GeneratedBatch) -> Tensor:
    """(B, T) tokens that carry loss: not those of tools, nor of truncated completions that are masked."""
    mask = generated.completion_mask
    return mask if generated.tool_mask is None else mask * generated.tool_mask


def rolled_out(generated: GeneratedBatch, rewards: Rewards, gather: Gather, processes: int) -> RolledOut:
    """What all ranks rolled out."""
    mask, logp = loss_mask(generated), generated.sampler_logp
    sure_B = None if logp is None else gather(confidence(torch.nan_to_num(logp, nan=0.0), mask)).cpu()
    return RolledOut(
        rewards=rewards,
        tokens_N=gather(mask.sum(1)).cpu(),
        attended_N=gather(generated.prompt_mask.sum(1) + generated.completion_mask.sum(1)).cpu(),
        confidence_N=sure_B,
        process_N=torch.arange(len(rewards)) // (len(rewards) // processes),
    )


def rank_batch(generated: GeneratedBatch, plan: StepPlan, rank: int) -> RankBatch:
    """What one rank trains on, as far as it is known before anything is forwarded."""
    size, mask = len(generated.completion_ids), loss_mask(generated)
    here, device = slice(rank * size, (rank + 1) * size), mask.device
    return RankBatch(
        prompt_ids=generated.prompt_ids,
        prompt_mask=generated.prompt_mask,
        completion_ids=generated.completion_ids,
        completion_mask=generated.completion_mask,
        loss_mask=mask,
        advantage_B=plan.advantage_N[here].to(device, torch.float32),
        weight_UB=plan.weight_UN[:, here].to(device, torch.float32),
        denominator=torch.tensor(plan.denominator, dtype=torch.float64),
        tokens=torch.tensor(plan.tokens, dtype=torch.float64),
        attended=torch.tensor(plan.attended, dtype=torch.float64),
        tokens_U=plan.tokens_U,
        sequences_U=plan.sequences_U,
        sampler_logp=generated.sampler_logp,
    )


def gathered_order(groups: Sequence[int], processes: int) -> Tensor:
    """(Q,) numbers of groups, counted round after round, in the order in which the rows of all ranks are gathered.

    Args:
        groups: of each round, a multiple of ``processes``; every rank holds an equal, contiguous part of each.
        processes: ranks.
    """
    numbers = torch.arange(sum(groups)).split(list(groups))
    return torch.cat([part.view(processes, -1) for part in numbers], 1).flatten()


def joined(rounds: Sequence[GeneratedBatch], order_Q: Tensor, generations: int, pad_token: int) -> GeneratedBatch:
    """Several rounds as one, padded to the widest: prompts on the left, completions on the right."""
    together: dict[str, Any] = {}
    for name in (field.name for field in fields(GeneratedBatch)):
        parts = [getattr(one, name) for one in rounds]
        if name == "tool_mask" and any(part is not None for part in parts):  # a round without tools has none
            parts = [torch.ones_like(one.completion_mask) if one.tool_mask is None else one.tool_mask for one in rounds]
        if parts[0] is None:
            together[name] = None
        elif name == "reward_NF":
            together[name] = torch.cat(parts).unflatten(0, (-1, generations))[order_Q].flatten(0, 1)
        else:
            width = max(part.shape[1] for part in parts)
            fill, left = (pad_token if name.endswith("_ids") else 0), name.startswith("prompt")
            pads = [(width - part.shape[1], 0) if left else (0, width - part.shape[1]) for part in parts]
            together[name] = torch.cat([F.pad(part, pad, value=fill) for part, pad in zip(parts, pads, strict=True)])
    return GeneratedBatch(**together)
