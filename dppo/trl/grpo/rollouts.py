"""Conversion between TRL's tensors of one rank and records of all ranks; and the rank that trains each completion.

Kept rows move between ranks, with their weights, until all ranks have about equally many tokens to forward. Gradients
are sums over ranks, so that changes only the order of a sum. (A router loss balances each pass by itself, as in TRL.)
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F

from dppo.packing import longest_processing_time, split_group
from dppo.pruning import SampledTokens, uncertainty
from dppo.step import RolledOut, StepPlan
from dppo.trl.batch import Padded, RankBatch
from dppo.trl.pictures import joined_pictures
from dppo.types import Rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedBatch(Padded):
    """Completions that TRL rolled out on this rank, and the rewards of all ranks."""

    reward_NF: Tensor
    """(N, F) rewards of all ranks in rank order, on the CPU; NaN if a function gave none."""
    place_B: Tensor
    """(B,) int64 place of each completion in the order in which TRL deals them to micro-batches."""


def loss_mask(completion_mask: Tensor, tool_mask: Tensor | None) -> Tensor:
    """(B, T) tokens that carry loss: not those of tools, nor of masked truncated completions."""
    return completion_mask if tool_mask is None else completion_mask * tool_mask


def rolled_out(generated: GeneratedBatch, rewards: Rewards, accelerator: Any, *, tokens: bool = False) -> RolledOut:
    """Rewards and lengths of the completions of all ranks; with ``tokens`` each of their tokens."""
    mask, logp = generated.loss_mask, generated.sampler_logp
    gather, sampled, uncertainty_N = accelerator.gather, None, None
    if logp is not None:
        uncertainty_N = gather(uncertainty(torch.nan_to_num(logp, nan=-math.inf), mask)).cpu()
    if tokens:
        known = torch.full(mask.shape, torch.nan, device=mask.device) if logp is None else logp
        wide = [accelerator.pad_across_processes(each, dim=1) for each in (known.float(), mask)]
        logp_NT, mask_NT = (gather(each).cpu() for each in wide)
        sampled = SampledTokens(logp_NT=logp_NT, mask_NT=mask_NT.bool())
    return RolledOut(
        rewards=rewards,
        tokens_N=gather(mask.sum(1)).cpu(),
        attended_N=gather(generated.prompt_mask.sum(1) + generated.completion_mask.sum(1)).cpu(),
        uncertainty_N=uncertainty_N,
        process_N=torch.arange(len(rewards)) // (len(rewards) // accelerator.num_processes),
        sampled=sampled,
    )


def rank_batch(generated: GeneratedBatch, plan: StepPlan, rank: int) -> RankBatch:
    """The batch of one rank before any forward pass."""
    size, device = len(generated.completion_ids), generated.loss_mask.device
    here, tokens_N = slice(rank * size, (rank + 1) * size), plan.completions.tokens_N
    counts_N3 = torch.stack([tokens_N, torch.ones_like(tokens_N), (plan.advantage_N == 0) & (tokens_N > 0)], 1)
    lengths = [draw.length_N[here] for draw in plan.token_draws]
    weights = [draw.weight_NT[here, : generated.loss_mask.shape[1]] for draw in plan.token_draws]
    return RankBatch(
        **{each.name: getattr(generated, each.name) for each in fields(Padded)},
        sizes=plan.sizes,
        advantage_B=plan.advantage_N[here].to(device, torch.float32),
        weight_UB=plan.weight_UN[:, here].to(device, torch.float32),
        full_U3=(plan.counted_UN @ counts_N3.double()).float(),
        length_UB=torch.stack(lengths).to(device) if lengths else None,
        token_weight_UBT=torch.stack(weights).to(device, torch.float32) if weights else None,
    )


def gathered_order(groups: Sequence[int], processes: int) -> Tensor:
    """(Q,) numbers of groups, counted round after round, in the order in which the rows of all ranks are gathered.

    ``groups`` of each round are a multiple of ``processes``.
    """
    numbers = torch.arange(sum(groups)).split(list(groups))
    return torch.cat([part.view(processes, -1) for part in numbers], 1).flatten()


NOWHERE = -1
"""The rank of a completion that no draw keeps."""
AXES = {
    **dict.fromkeys(("prompt_ids", "prompt_mask"), "BP"),
    **dict.fromkeys(("completion_ids", "completion_mask", "loss_mask", "sampler_logp", "policy_mask"), "BT"),
    **{"advantage_B": "B", "weight_UB": "UB", "length_UB": "UB", "token_weight_UBT": "UBT", "pictures": "B"},
}
"""Axes of the fields with a value for each row: optimizer steps U, rows B, tokens of a prompt P and a completion T."""


def joined(rounds: Sequence[GeneratedBatch], order_Q: Tensor) -> GeneratedBatch:
    """Several rounds as one batch; ``order_Q`` from ``gathered_order``."""
    padded = {each.name: [getattr(one, each.name) for one in rounds] for each in fields(Padded)}
    reward_NF = torch.cat([one.reward_NF for one in rounds])
    return GeneratedBatch(
        **{name: _end_to_end(name, parts) for name, parts in padded.items()},
        reward_NF=reward_NF.unflatten(0, (len(order_Q), -1))[order_Q].flatten(0, 1),
        place_B=torch.cat([one.place_B for one in rounds]).argsort(stable=True).argsort(),
    )


def _end_to_end(name: str, parts: list[Any]) -> Any:
    """One field of several batches, row after row; tokens are padded to the widest, those of prompts on the left."""
    if parts[0] is None:
        return None
    if name == "pictures":
        return joined_pictures(parts)
    axes = AXES[name]
    if axes[-1] in "PT":
        missing = [max(part.shape[-1] for part in parts) - part.shape[-1] for part in parts]
        pads = [(width, 0) if axes[-1] == "P" else (0, width) for width in missing]
        parts = [F.pad(part, pad) for part, pad in zip(parts, pads, strict=True)]
    return torch.cat(parts, axes.index("B"))


def ranks_of_rows(
    prompt_N: Tensor, completion_UN: Tensor, weight_UN: Tensor, processes: int, *, group_N: Tensor | None = None
) -> Tensor:
    """(N,) int64 the rank that trains each completion; ``NOWHERE`` for those that are dropped.

    The cost of a rank is the tokens that it forwards in all optimizer steps: of prompts, (N,), and of completions that
    are kept, (U, N), or (1, N) if equal in all steps. With ``group_N`` a row holds the prompt of a group once, so its
    completions stay together.
    """
    times_N = (weight_UN > 0).sum(0)
    size = len(times_N) // processes
    parts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in times_N.nonzero()[:, 0].tolist():
        parts[row // size, row if group_N is None else int(group_N[row])].append(row)
    prompt = (prompt_N * times_N).tolist()
    completion = (completion_UN * (weight_UN > 0)).sum(0).tolist()

    def cost(rows: list[int]) -> int:
        return max(prompt[row] for row in rows) + sum(completion[row] for row in rows)

    half = max(1, int(sum(map(cost, parts.values())) / processes / 2))  # of the mean cost of a rank: most of a unit
    units: list[list[int]] = []
    home: list[int] = []
    for (rank, _), rows in parts.items():
        for part in split_group(max(prompt[row] for row in rows), [completion[row] for row in rows], half):
            units.append([rows[at] for at in part])
            home.append(rank)
    rank_N = torch.full((len(times_N),), NOWHERE)
    for rank, dealt in enumerate(longest_processing_time([*map(cost, units)], processes, home=home)):
        for unit in dealt:
            rank_N[units[unit]] = rank
    return rank_N


def over_ranks(batch: RankBatch, plan: StepPlan, accelerator: Any, *, shares_prompts: bool) -> RankBatch:
    """This rank's batch of the kept completions of all ranks, which call together."""
    if accelerator.num_processes == 1:
        return batch
    here_B2 = torch.stack([batch.prompt_mask.sum(1), batch.completion_mask.sum(1)], 1)
    prompt_N, completion_N = accelerator.gather(here_B2).T.cpu()
    draws = [draw.length_N for draw in plan.token_draws]
    completion_UN = torch.stack(draws) if draws else completion_N[None]
    group_N = plan.completions.group_N if shares_prompts else None
    rank_N = ranks_of_rows(prompt_N, completion_UN, plan.weight_UN, accelerator.num_processes, group_N=group_N)
    return dealt(batch, rank_N, accelerator.process_index, gather_object)


def dealt(batch: RankBatch, rank_N: Tensor, rank: int, exchange: Callable[[list[Any]], list[Any]]) -> RankBatch:
    """The batch of a rank after rows have moved: its own that stay, in order, then those that came.

    Rows that no draw keeps are left out. A rank without any row keeps one: others may wait for its forward passes.
    ``exchange`` concatenates the lists of all ranks, in rank order.
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
    found, device = _rows_of(batch, stay), batch.completion_ids.device
    for name, own in found.items():
        found[name] = _end_to_end(name, [own, *(row[name].to(device) for row in came)])
    return replace(batch, **found)


def _rows_of(batch: RankBatch, rows: list[int]) -> dict[str, Any]:
    """The fields in ``AXES`` of some rows, by name."""
    at = torch.tensor(rows, dtype=torch.int64, device=batch.completion_ids.device)
    found: dict[str, Any] = {}
    for name, axes in AXES.items():
        value = getattr(batch, name)
        if isinstance(value, Tensor):
            found[name] = value.index_select(axes.index("B"), at)
        elif value is not None:
            found[name] = value.select(rows)
    return found


def _packed(batch: RankBatch, row: int) -> dict[str, Any]:
    """A row without padding, on the CPU."""
    width = batch.prompt_ids.shape[1]
    tokens = {"P": slice(width - batch.prompt_tokens[row], width), "T": slice(batch.completion_tokens[row])}
    found = _rows_of(batch, [row])
    for name, value in found.items():
        kept = tokens.get(AXES[name][-1])
        found[name] = (value if kept is None else value[..., kept]).to("cpu")
    return found
