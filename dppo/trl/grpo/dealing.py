"""Which rank trains which completions: kept rows move between ranks, so that all have about as much to forward.

A rank's draws may keep few of its own completions, or none, and the others would wait for it to do nothing. A row takes
its weight along, and the denominator was settled before: gradients are sums over ranks, so where a row is forwarded
changes the order of a sum and nothing else. (A router loss balances each forward pass by itself, here as in TRL.)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F

from dppo.packing import rebalance, split_group
from dppo.step import StepPlan
from dppo.trl.batch import RankBatch

NOWHERE = -1
"""The rank of a completion that no draw keeps."""
PARTS_OF_A_RANK = 2
"""A group whose rows cost more than this part of a rank's mean is dealt in parts, each with the prompt."""
PER_TOKEN = ("completion_ids", "loss_mask", "sampler_logp")
"""What a row has for each token of its completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of all completions of a generation, and whose they are."""

    prompt_N: Tensor
    """(N,) tokens of the prompt."""
    completion_N: Tensor
    """(N,) tokens of the completion."""
    group_N: Tensor
    """(N,) its group."""


def ranks_of_rows(lengths: Lengths, weight_UN: Tensor, processes: int, *, shares_prompts: bool) -> Tensor:
    """(N,) int64 the rank that trains each completion; ``NOWHERE`` for those that are dropped.

    What a rank costs is the tokens that it forwards in all optimizer steps. Completions of a group stay together where
    a row holds their prompt once.

    Args:
        lengths: of all ranks' completions, of which each rank rolled out an equal, contiguous part.
        weight_UN: (U, N) of each optimizer step; a row of weight 0 is not forwarded.
        processes: ranks.
        shares_prompts: whether completions of one prompt on one rank are forwarded behind one copy of it.
    """
    times_N = (weight_UN > 0).sum(0)
    kept = times_N.nonzero()[:, 0].tolist()
    size = len(times_N) // processes
    parts: dict[tuple[int, int], list[int]] = {}
    for row in kept:
        parts.setdefault((row // size, int(lengths.group_N[row]) if shares_prompts else row), []).append(row)
    prompt, completion = (lengths.prompt_N * times_N).tolist(), (lengths.completion_N * times_N).tolist()

    def shared(rows: list[int]) -> int:
        return max(prompt[row] for row in rows)

    mean = sum(shared(rows) + sum(completion[row] for row in rows) for rows in parts.values()) / processes
    units, costs, home = [], [], []
    for (rank, _), rows in parts.items():
        own = [completion[row] for row in rows]
        for part in split_group(shared(rows), own, max(1, int(mean / PARTS_OF_A_RANK))):
            units.append([rows[at] for at in part])
            costs.append(shared(units[-1]) + sum(own[at] for at in part))
            home.append(rank)
    rank_N = torch.full((len(times_N),), NOWHERE)
    for rows, rank in zip(units, rebalance(costs, home, processes), strict=True):
        rank_N[rows] = rank
    return rank_N


def over_ranks(batch: RankBatch, plan: StepPlan, accelerator: Any, *, shares_prompts: bool) -> RankBatch:
    """What this rank trains on, out of the kept completions of all: all ranks call it together."""
    processes = accelerator.num_processes
    if processes == 1:
        return batch
    prompt_N, completion_N = accelerator.gather(
        torch.stack([batch.prompt_mask.sum(1), batch.completion_mask.sum(1)], 1)
    ).T.cpu()
    lengths = Lengths(prompt_N=prompt_N, completion_N=completion_N, group_N=plan.completions.group_N)
    rank_N = ranks_of_rows(lengths, plan.weight_UN, processes, shares_prompts=shares_prompts)
    return dealt(batch, rank_N, accelerator.process_index, gather_object)


Exchange = Callable[[list[Any]], list[Any]]
"""Concatenates the lists of all ranks, in rank order."""


def dealt(batch: RankBatch, rank_N: Tensor, rank: int, exchange: Exchange) -> RankBatch:
    """The batch of a rank after rows have moved: those of its own that stay, in order, then those that came.

    Rows that no draw keeps are left behind, but for one where nothing else is there to forward.
    """
    size = len(batch.completion_ids)
    to_B = rank_N[rank * size : (rank + 1) * size]
    home_N = torch.arange(len(rank_N)) // size
    stay = (to_B == rank).nonzero()[:, 0].tolist()
    came: list[dict[str, Any]] = []
    if ((rank_N != NOWHERE) & (rank_N != home_N)).any():
        leave = ((to_B != rank) & (to_B != NOWHERE)).nonzero()[:, 0].tolist()
        sent = exchange([_packed(batch, row) | {"to": int(to_B[row])} for row in leave])
        came = [row for row in sent if row["to"] == rank]
    if not stay and not came:
        stay = [int(batch.lengths.argmin())]
    return _with_rows(batch, stay, came)


def _packed(batch: RankBatch, row: int) -> dict[str, Any]:
    """A row without padding, on the CPU."""
    tokens = batch.completion_tokens[row]
    per_token = {name: value[row, :tokens].cpu() for name in PER_TOKEN if (value := getattr(batch, name)) is not None}
    return {
        "prompt_ids": batch.prompt(row).cpu(),
        **per_token,
        "advantage": float(batch.advantage_B[row]),
        "weight_U": batch.weight_UB[:, row].cpu(),
    }


def _with_rows(batch: RankBatch, stay: list[int], came: list[dict[str, Any]]) -> RankBatch:
    """Some rows of a batch and others behind them, as wide as the widest of them."""
    device = batch.completion_ids.device
    here = torch.tensor(stay, dtype=torch.int64, device=device)

    def wide(name: str, *, left: bool = False) -> Tensor:
        own = getattr(batch, name)[here]
        others = [row[name].to(device, own.dtype) for row in came]
        width = max([own.shape[1], *map(len, others)])

        def pad(value: Tensor) -> Tensor:
            missing = width - value.shape[-1]
            return F.pad(value, (missing, 0) if left else (0, missing))

        return torch.cat([pad(own), *(pad(other)[None] for other in others)])

    def mask(name: str, lengths: list[int], width: int, *, left: bool) -> Tensor:
        own = getattr(batch, name)
        length_B1 = torch.tensor(lengths, device=device)[:, None]
        place_T = torch.arange(width, device=device)
        return (place_T >= width - length_B1 if left else place_T < length_B1).to(own.dtype)

    prompts = [batch.prompt_tokens[row] for row in stay] + [len(row["prompt_ids"]) for row in came]
    tokens = [batch.completion_tokens[row] for row in stay] + [len(row["completion_ids"]) for row in came]
    prompt_ids, completion_ids = wide("prompt_ids", left=True), wide("completion_ids")
    weight_U1 = [row["weight_U"][:, None].to(device) for row in came]
    return replace(
        batch,
        prompt_ids=prompt_ids,
        prompt_mask=mask("prompt_mask", prompts, prompt_ids.shape[1], left=True),
        completion_ids=completion_ids,
        completion_mask=mask("completion_mask", tokens, completion_ids.shape[1], left=False),
        loss_mask=wide("loss_mask"),
        sampler_logp=None if batch.sampler_logp is None else wide("sampler_logp"),
        advantage_B=torch.cat([batch.advantage_B[here], batch.advantage_B.new_tensor([r["advantage"] for r in came])]),
        weight_UB=torch.cat([batch.weight_UB[:, here], *weight_U1], 1),
    )
