"""Conversion between TRL's tensors of one rank and records of all ranks; and the rank that trains each completion.

Kept rows move between ranks, with their weights, until all ranks have about equally many tokens to forward. Gradients
are sums over ranks, so that changes only the order of a sum. (A router loss balances each pass by itself, as in TRL.)
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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


def calls_of(place_N: Tensor, process_N: Tensor, share_UN: Tensor, calls: int) -> Tensor:
    """(N,) int64 TRL's micro-batch of each completion: equal parts of a rank's share of a step, in TRL's order.

    ``place_N`` are places in the order of the rank ``process_N`` that rolled the completion out.
    """
    call_N = torch.zeros_like(place_N)
    for share_N, process in itertools.product(share_UN, process_N.unique()):
        here = (share_N & (process_N == process)).nonzero()[:, 0]
        here = here[place_N[here].argsort()]
        call_N[here] = torch.arange(len(here)) * calls // max(len(here), 1)
    return call_N


def rank_batch(generated: GeneratedBatch, plan: StepPlan, accelerator: Any, calls: int) -> RankBatch:
    """The batch of one rank before any forward pass; all ranks call together."""
    rank, size = accelerator.process_index, len(generated.completion_ids)
    here, device = slice(rank * size, (rank + 1) * size), generated.loss_mask.device
    place_N = accelerator.gather(generated.place_B).cpu()
    call_N = calls_of(place_N, torch.arange(len(place_N)) // size, plan.share_UN, calls)
    share_UN4, unclipped_UC = metric_shares(plan, call_N, calls)
    width = generated.loss_mask.shape[1]
    of_tokens = [draw.weight_NT[here, :width].to(device, torch.float32) for draw in plan.token_draws]
    lengths = [draw.length_N[here].to(device) for draw in plan.token_draws]
    return RankBatch(
        **{each.name: getattr(generated, each.name) for each in fields(Padded)},
        sizes=plan.sizes,
        advantage_B=plan.advantage_N[here].to(device, torch.float32),
        weight_UB=plan.weight_UN[:, here].to(device, torch.float32),
        share_UB4=share_UN4[:, here].to(device, torch.float32),
        unclipped_UC=unclipped_UC.to(device),
        call_B=call_N[here].to(device),
        length_UB=torch.stack(lengths) if lengths else None,
        token_weight_UBT=torch.stack(of_tokens) if of_tokens else None,
    )


def metric_shares(plan: StepPlan, call_N: Tensor, calls: int) -> tuple[Tensor, Tensor]:
    """(U, N, 4) ``share_UB4`` of all completions, and (U, C) ``unclipped_UC``, for ``calls`` micro-batches.

    Means over completions with a gradient leave out a micro-batch that has tokens and no such completion: nothing is
    known of it. A micro-batch without tokens counts as 0, as in TRL.
    """
    tokens_N, live_N = plan.completions.tokens_N, plan.completions.live_N
    call_NC = F.one_hot(call_N, calls).double()
    counts_N4 = torch.stack([tokens_N, torch.ones_like(tokens_N), tokens_N * live_N, live_N], 1).double()
    total_U4C = torch.einsum("un,nk,nc->ukc", plan.counted_UN, counts_N4, call_NC)
    known_U4C = (total_U4C > 0) | (total_U4C[:, :1] == 0)
    known_U4C[:, :2] = True
    share_U4C = torch.where(total_U4C > 0, 1 / total_U4C, 0.0) / known_U4C.sum(2, keepdim=True).clamp(min=1)
    # Their sums are divided by the weights that are kept, in all rather than in each micro-batch.
    share_U4C[:, 2:] *= total_U4C[:, 2:].sum(2, keepdim=True)
    unclipped_N = ((plan.advantage_N == 0) & (tokens_N > 0)).double()
    return share_U4C[:, :, call_N].transpose(1, 2), plan.counted_UN * unclipped_N @ call_NC > 0


def gathered_order(groups: Sequence[int], processes: int) -> Tensor:
    """(Q,) numbers of groups, counted round after round, in the order in which the rows of all ranks are gathered.

    ``groups`` of each round are a multiple of ``processes``.
    """
    numbers = torch.arange(sum(groups)).split(list(groups))
    return torch.cat([part.view(processes, -1) for part in numbers], 1).flatten()


def joined(rounds: Sequence[GeneratedBatch], order_Q: Tensor, generations: int, pad_token: int) -> GeneratedBatch:
    """Several rounds as one batch, padded to the widest: prompts on the left, completions on the right."""
    together: dict[str, Any] = {}
    for name in (field.name for field in fields(GeneratedBatch)):
        parts: list[Any] = [getattr(one, name) for one in rounds]
        if parts[0] is None:
            together[name] = None
        elif name == "pictures":
            together[name] = joined_pictures(parts)
        elif name == "place_B":
            together[name] = torch.cat(parts).argsort(stable=True).argsort()
        elif name == "reward_NF":
            together[name] = torch.cat(parts).unflatten(0, (-1, generations))[order_Q].flatten(0, 1)
        else:
            fill = pad_token if name.endswith("_ids") else 0
            together[name] = _padded_cat(parts, left=name in OF_PROMPTS, fill=fill)
    return GeneratedBatch(**together)


def _padded_cat(parts: Sequence[Tensor], dim: int = 0, *, left: bool, fill: int = 0) -> Tensor:
    """Tensors concatenated along ``dim``, their last dimension padded to the widest."""
    width = max(part.shape[-1] for part in parts)
    pads = [(width - part.shape[-1], 0) if left else (0, width - part.shape[-1]) for part in parts]
    return torch.cat([F.pad(part, pad, value=fill) for part, pad in zip(parts, pads, strict=True)], dim)


NOWHERE = -1
"""The rank of a completion that no draw keeps."""
OF_PROMPTS = ("prompt_ids", "prompt_mask")
PER_TOKEN = ("completion_ids", "completion_mask", "loss_mask", "sampler_logp", "policy_mask", "token_weight_UBT")
"""Tensors with a value for each token of a completion."""
PER_ROW = ("advantage_B", "call_B", "weight_UB", "length_UB", "share_UB4")
PER_STEP = ("weight_UB", "length_UB", "token_weight_UBT", "share_UB4")
"""Tensors with a value for each optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of all completions of a generation, and their groups."""

    prompt_N: Tensor
    """(N,) tokens of the prompt."""
    completion_UN: Tensor
    """(U, N) tokens that each optimizer step forwards of a completion that it keeps; (1, N) if all are equal."""
    group_N: Tensor
    """(N,) its group."""


def ranks_of_rows(lengths: Lengths, weight_UN: Tensor, processes: int, *, shares_prompts: bool) -> Tensor:
    """(N,) int64 the rank that trains each completion; ``NOWHERE`` for those that are dropped.

    The cost of a rank is the tokens that it forwards in all optimizer steps. With ``shares_prompts`` a row holds the
    prompt of a group once, so its completions stay together.
    """
    times_N = (weight_UN > 0).sum(0)
    size = len(times_N) // processes
    parts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in times_N.nonzero()[:, 0].tolist():
        parts[row // size, int(lengths.group_N[row]) if shares_prompts else row].append(row)
    prompt = (lengths.prompt_N * times_N).tolist()
    completion = (lengths.completion_UN * (weight_UN > 0)).sum(0).tolist()

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
    lengths = Lengths(prompt_N=prompt_N, completion_UN=completion_UN, group_N=plan.completions.group_N)
    rank_N = ranks_of_rows(lengths, plan.weight_UN, accelerator.num_processes, shares_prompts=shares_prompts)
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
    return _with_rows(batch, stay, came)


def _packed(batch: RankBatch, row: int) -> dict[str, Any]:
    """A row without padding, on the CPU."""
    prompt, completion = batch.prompt_tokens[row], batch.completion_tokens[row]
    width = batch.prompt_ids.shape[1]
    tokens = dict.fromkeys(PER_TOKEN, slice(completion)) | dict.fromkeys(OF_PROMPTS, slice(width - prompt, width))
    found: dict[str, Any] = {}
    for name, dim, value in _of_rows(batch):
        one = value.narrow(dim, row, 1)
        found[name] = (one[..., tokens[name]] if name in tokens else one).cpu()
    if batch.pictures is not None:
        found["pictures"] = batch.pictures.select([row]).to("cpu")
    return found


def _of_rows(batch: RankBatch) -> Iterator[tuple[str, int, Tensor]]:
    """Name, dimension of rows and value of each tensor of rows."""
    for name in (*OF_PROMPTS, *PER_TOKEN, *PER_ROW):
        if (value := getattr(batch, name)) is not None:
            yield name, int(name in PER_STEP), value


def _with_rows(batch: RankBatch, stay: list[int], came: list[dict[str, Any]]) -> RankBatch:
    here = torch.tensor(stay, dtype=torch.int64, device=batch.completion_ids.device)
    together = {}
    for name, dim, value in _of_rows(batch):
        parts = [value.index_select(dim, here), *(row[name].to(value.device) for row in came)]
        padded = name not in PER_ROW
        together[name] = _padded_cat(parts, dim, left=name in OF_PROMPTS) if padded else torch.cat(parts, dim)
    if batch.pictures is not None:
        moved = [row["pictures"].to(batch.completion_ids.device) for row in came]
        together["pictures"] = joined_pictures([batch.pictures.select(stay), *moved])
    return replace(batch, **together)
