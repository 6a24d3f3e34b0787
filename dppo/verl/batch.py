"""A step in verl's queue: read for a plan, sent to workers, and values over all rows estimated from the kept ones.

``batch`` is verl's ``KVBatchMeta`` of B rows, and ``actor`` its configuration of the actor.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.protocol import DataProto  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo import rollout_corr_helper  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty  # pyright: ignore[reportMissingImports]
from verl.workers.utils.padding import response_to_nested  # pyright: ignore[reportMissingImports]

from dppo.errors import RewardError
from dppo.groups import each_group
from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import SampledTokens, uncertainty
from dppo.step import RolledOut, StepPlan, other_terms
from dppo.step.in_flight import Requested
from dppo.types import Rewards
from dppo.verl.layout import Placement, Prefixes, engine_shares, forwarded, furthest, place, places

ADVANTAGES, RETURNS, MASK, ENTROPY = "advantages", "returns", "response_mask", "entropy"
SAMPLED, OLD, REFERENCE, RATIOS = "rollout_log_probs", "old_log_probs", "ref_log_prob", "rollout_is_weights"
OF_ROW = ("input_ids", "position_ids")
"""Fields with an entry for each token of a prompt and its completion."""
OF_COMPLETION = ("responses", MASK, "loss_mask", ADVANTAGES, RETURNS, SAMPLED, OLD, REFERENCE, RATIOS)
"""Fields with an entry for each token of a completion, of which a step may lack some."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The rollouts of the requested prompts."""

    whole: Any
    """verl's ``KVBatchMeta`` of everything that was rolled out."""
    rolled_out: RolledOut
    """All requested completions; one that failed has no tokens and no reward. Uncertainties need log-probabilities."""
    advantage_N: Tensor
    """(N,) float64 verl's own advantages, 0 where there are no tokens, and in zero-variance groups: verl divides their
    rounding errors by a deviation near 0."""
    row_N: Tensor
    """(N,) int64 the row of each completion in the batch, -1 if it failed."""
    rows: Prefixes
    """Whole rows of the batch, verl's padding included."""

    def by_row(self, value: Tensor) -> Tensor:
        """(..., B) of (..., N): the value of each completion at its row, 0 at other rows."""
        found, there_N = value.new_zeros(*value.shape[:-1], len(self.rows.prompt_N)), self.row_N >= 0
        found[..., self.row_N[there_N]] = value[..., there_N]
        return found


def returned(batch: Any, requested: Requested, *, tokens: bool = False, grouped: bool = False) -> Returned:
    """The completions of the requested prompts, read from a batch with advantages.

    ``tokens`` adds single tokens, ``grouped`` the groups of rows whose prompt is forwarded once. A session with several
    outputs is a ``ShapeError``, a reward that is no finite number a ``RewardError``.
    """
    data = _read(batch, [MASK, ADVANTAGES, "rm_scores", "token_level_rewards", OLD, SAMPLED])
    mask = [row.bool() for row in data[MASK].unbind()]
    rewards = data["token_level_rewards" if "token_level_rewards" in data else "rm_scores"].unbind()
    reward_B = torch.stack([reward.sum() for reward in rewards]).double()
    firsts = (float(a[m][0]) if m.any() else 0.0 for a, m in zip(data[ADVANTAGES].unbind(), mask, strict=True))
    advantage_B = torch.tensor(list(firsts), dtype=torch.float64)
    completions = {row: key for row, key in enumerate(batch.keys) if not batch.tags[row].get("is_padding")}
    for row, key in completions.items():
        if not bool(reward_B[row].isfinite()):
            needed = "verl's advantages need a number for each completion of a group"
            advice = "Return 0.0 in its place, or let the session fail"
            raise RewardError(f"the reward of {key} is {reward_B[row]:g}, and {needed}. {advice}.")
    completion_B = torch.tensor([len(row) for row in mask])
    uids = [key.rsplit("_", 2)[0] for key in batch.keys]  # verl's padding has the key of another prompt
    rows = Prefixes(
        prompt_N=torch.tensor([int(tag["seq_len"]) for tag in batch.tags]) - completion_B,
        scored_NT=pad_sequence(mask, batch_first=True),
        completion_N=completion_B,
        group_N=torch.from_numpy(np.unique(uids, return_inverse=True)[1]) if grouped else None,
    )
    row_N = torch.tensor(places(completions, requested.uid_Q, requested.size_Q))
    missing_N = row_N < 0
    reward_N = reward_B[row_N].masked_fill(missing_N, torch.nan)
    found = Rewards.in_groups(reward_N[:, None], torch.tensor(requested.size_Q))
    # verl keeps the raw reward of a completion that is alone in its group.
    alone_Q = each_group(lambda missing_QG: (~missing_QG).sum(1) == 1, found.group_N, missing_N)
    zero_N = missing_N | (found.zero_variance_Q & ~alone_Q)[found.group_N]
    uncertainty_N, logp_BT = None, torch.full(rows.scored_NT.shape, torch.nan)
    if (name := next((name for name in (SAMPLED, OLD) if name in data), None)) is not None:
        logp = data[name].unbind()
        # Row by row: a sum over padding would round otherwise.
        uncertainty_B = torch.cat([uncertainty(p[None], m[None]) for p, m in zip(logp, mask, strict=True)])
        uncertainty_N = uncertainty_B[row_N].masked_fill(missing_N, 0.0)
        logp_BT = pad_sequence(list(logp), batch_first=True).float()
    mask_NT = rows.scored_NT[row_N] & ~missing_N[:, None]
    rolled_out = RolledOut(
        rewards=found,
        tokens_N=mask_NT.sum(1),
        uncertainty_N=uncertainty_N,
        sampled=SampledTokens(logp_NT=logp_BT[row_N], mask_NT=mask_NT) if tokens else None,
    )
    advantage_N = advantage_B[row_N].masked_fill(zero_N, 0.0)
    return Returned(whole=batch, rolled_out=rolled_out, advantage_N=advantage_N, row_N=row_N, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """The rows of a planned step that workers are sent, laid out for the passes over them."""

    whole: Any
    """The batch of ``Returned``: verl logs and clears all of it."""
    passes: list[Placement]
    """Rows of each pass of the update over the batch."""
    forwarded: list[int]
    """Rows that passes before the update go over."""
    rows: Prefixes
    """All rows, as far as passes before the update forward them, with the weights of ``furthest``."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the rows that are sent, by the names of docs/verl.md."""
        rolled_out = sum(int(tag["seq_len"]) for tag in self.whole.tags if not tag.get("is_padding"))
        return {
            "rows/sent": float(sum(len(each.row_B) for each in self.passes)),
            "rows/fillers": float(sum(int((each.weight_B == 0).sum()) for each in self.passes)),
            "rows/forwarded": float(len(self.forwarded)),
            "rows/tokens_share": int(self.rows.length_N[self.forwarded].sum()) / rolled_out,
        }

    def forwarded_weights(self, width: int) -> tuple[Tensor, Tensor]:
        """Weights (B, width) or (B, 1) of the forwarded rows, and their tokens with loss (B,) before a cut, >= 1."""
        assert self.rows.weight_NT is not None, "a dispatched step has weights"
        tokens_B = self.rows.scored_NT[self.forwarded].sum(1).clamp_min(1)
        return self.rows.weight_NT[self.forwarded, :width], tokens_B


def drawn_rows(found: Returned, plan: StepPlan, *, passes: int, ranks: int, divisor: int | None) -> Dispatched:
    """Rows that some draw keeps; each pass over the batch has its own draws.

    The engine divides the loss by ``divisor`` completions, or if None by the tokens that it is sent.
    """
    whole, weight_UN, each = found.rows, found.by_row(plan.weight_UN), len(plan.token_draws) // passes
    rows_P = [whole.cut(plan.token_draws[k * each : (k + 1) * each], found.row_N) for k in range(passes) if each]
    rows_P = rows_P or [whole] * passes
    # Blocks of ``fill`` have more prompts than verl divides by; a mean over the tokens that are sent does not change.
    scale = 1.0 if divisor is None else divisor / plan.prompts.sequences
    placements = []
    for weight_SN, tokens_S, rows in zip(weight_UN.chunk(passes), plan.tokens_U.chunk(passes), rows_P, strict=True):
        if each and plan.method.normaliser.per_sequence:  # verl divides by the tokens before the cut
            weight_SN = weight_SN * (rows.tokens_N / whole.tokens_N.clamp_min(1))
        placements.append(place(weight_SN, rows, ranks, tokens_U=tokens_S if divisor is None else None, scale=scale))
    rows = furthest(rows_P, weight_UN.unflatten(0, (passes, -1)).sum(1))
    return Dispatched(whole=found.whole, passes=placements, forwarded=forwarded(placements, rows, ranks), rows=rows)


def live_rows(found: Returned, plan: StepPlan, *, ranks: int, by_tokens: bool, rows_per_step: int) -> Dispatched:
    """verl's own mini-batches without the rows that have no gradient; the unchanged batch if all have one.

    ``rows_per_step`` are those of a mini-batch on all ranks, which are dealt to ranks by groups if prompts are shared.
    ``by_tokens`` is True if the engine divides the loss by the tokens that it is sent.
    """
    whole, live_N = found.rows, found.by_row(plan.completions.live_N)
    by_groups = whole.group_N is not None and ranks > 1
    if bool(plan.completions.live_N[found.row_N >= 0].all()) and not by_groups:
        every, one_B = list(range(len(live_N))), torch.ones(len(live_N))
        placement = Placement(row_B=every, weight_B=one_B, rows=whole, rows_per_step=rows_per_step)
    else:
        share_UN = engine_shares(len(live_N), rows_per_step, ranks)
        tokens_U = (share_UN * whole.tokens_N).sum(1) if by_tokens else None
        placement = place((share_UN & live_N).double(), whole, ranks, tokens_U=tokens_U)
    rows = replace(whole, weight_NT=live_N.double()[:, None])
    return Dispatched(whole=found.whole, passes=[placement], forwarded=placement.row_B, rows=rows)


def write_advantages(batch: Any, advantage_B: Tensor) -> None:
    """Put other advantages (B,) in place of verl's."""
    masks = _read(batch, [MASK])[MASK].unbind()
    spread = jagged([mask.float() * value for mask, value in zip(masks, advantage_B.tolist(), strict=True)])
    write(batch, {ADVANTAGES: spread, RETURNS: spread.clone()})


def corrected(batch: Any, settings: Any) -> dict[str, float]:
    """Metrics of verl's rollout correction, whose importance ratios are written; ``settings`` is its configuration."""
    data = _read(batch, [MASK, OLD, SAMPLED])
    padded, correct = data.to_padded_tensor(), rollout_corr_helper.compute_rollout_correction_and_add_to_batch
    found, metrics = correct(DataProto(batch=padded), settings)
    if RATIOS in found.batch:
        write(batch, {RATIOS: response_to_nested(found.batch[RATIOS], data[MASK])})
    return metrics


def entropy_metric(batch: Any, sent: Dispatched, actor: Any) -> dict[str, float]:
    """verl's mean entropy of all rows with a gradient, estimated from the kept ones; empty if none has a weight."""
    data = _read(batch, [MASK, ENTROPY]).to_padded_tensor()
    weight_BT, tokens_B = sent.forwarded_weights(data[MASK].shape[1])
    if not weight_BT.any():
        return {}
    weighted_BT = data[MASK] * weight_BT.float()
    averaged = actor.loss_agg_mode == "seq-mean-token-mean"  # divides by the tokens before the cut
    share_B = data[MASK].sum(1) / tokens_B if averaged else torch.ones(len(tokens_B))
    entropy = agg_loss(
        loss_mat=data[ENTROPY] * weighted_BT * share_B[:, None],
        loss_mask=data[MASK],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
        batch_num_tokens=weighted_BT.sum(),
        global_batch_size=(weighted_BT.sum(1) / tokens_B).sum(),
    )
    return {"actor/entropy": float(entropy)}


def term_sizes(batch: Any, sent: Dispatched, method: Method, actor: Any) -> tuple[float, float] | None:
    """Sums for ``OtherTerms.after``, estimated from kept rows; None if entropies are missing, as in bypass mode."""
    data = _read(batch, [MASK, OLD, REFERENCE, ENTROPY]).to_padded_tensor()
    entropy_BT = data.get(ENTROPY, None)
    if method.entropy_coef and entropy_BT is None:
        return None
    weight_BT, tokens_B = sent.forwarded_weights(data[MASK].shape[1])
    tokens = Tokens(
        logp_BT=data[OLD].double(),
        old_logp_BT=data[OLD].double(),
        ref_logp_BT=data[REFERENCE].double() if method.beta else None,
        advantage_B=torch.zeros(len(tokens_B), dtype=torch.float64),
        mask_BT=data[MASK],
        counted_B=tokens_B,
    )
    method = replace(method, kl=lambda tokens: kl_penalty(tokens.logp_BT, tokens.ref_logp_BT, actor.kl_loss_type))
    scale = 1 / tokens_B[:, None] if method.normaliser.per_sequence else 1.0  # verl's bonus is a mean as its loss is
    square, unit = other_terms(method, tokens, weight_BT.double(), entropy_BT, entropy_scale=scale).tolist()
    return square, unit


def cut_batch(batch: Any, keys: list[str], completion_B: Tensor, partition: str) -> Any:
    """Rows of a batch up to a cut, in another partition of TransferQueue; ``completion_B`` tokens, >= 1, are kept."""
    names = ["prompts", *OF_ROW, *OF_COMPLETION]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    sizes = list(zip(data["prompts"].offsets().diff().tolist(), completion_B.tolist(), strict=True))
    columns = {}
    for name, column in data.items():
        ends = [p if name == "prompts" else p + n if name in OF_ROW else n for p, n in sizes]
        columns[name] = jagged([row[:end] for row, end in zip(column.unbind(), ends, strict=True)])
    tag_of = dict(zip(batch.keys, batch.tags, strict=True))
    tags = [{**tag_of[key], "response_len": n, "seq_len": p + n} for key, (p, n) in zip(keys, sizes, strict=True)]
    fields = TensorDict(columns, batch_size=len(keys))
    found = transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=fields, tags=tags)
    found.extra_info.update(batch.extra_info)
    return found


def jagged(rows: list[Tensor]) -> Tensor:
    """Rows of different lengths as verl keeps them."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def write(batch: Any, fields: dict[str, Tensor]) -> Any:
    """The batch with fields of all rows written."""
    columns = TensorDict(fields, batch_size=len(batch.keys))
    return transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=columns)


def _read(batch: Any, names: list[str]) -> TensorDict:
    """Those of the fields that the rows of a batch have."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
