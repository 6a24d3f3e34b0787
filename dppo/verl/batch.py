"""What verl's queue holds of a step, read for a plan, and what verl computes on all rows where only some are kept.

``batch`` is verl's ``KVBatchMeta`` of B rows, ``actor`` its configuration of the actor, ``weight_BT`` (B, 1) weights of
rows or (B, T) of their completion tokens, ``tokens_B`` (B,) the tokens with loss of each row before it is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor
from verl.protocol import DataProto  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.rollout_corr_helper import (  # pyright: ignore[reportMissingImports]
    compute_rollout_correction_and_add_to_batch,
)
from verl.workers.utils.padding import response_to_nested  # pyright: ignore[reportMissingImports]

from dppo.errors import RewardError
from dppo.groups import each_group
from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import SampledTokens, uncertainty
from dppo.step import RolledOut, other_terms
from dppo.step.in_flight import Requested
from dppo.types import Rewards
from dppo.verl.layout import Rows, places

ADVANTAGES, RETURNS, MASK = "advantages", "returns", "response_mask"
SAMPLED, OLD, RATIOS = "rollout_log_probs", "old_log_probs", "rollout_is_weights"
OF_ROW = ("input_ids", "position_ids")
"""Fields with an entry for each token of a prompt and its completion."""
OF_COMPLETION = ("responses", MASK, "loss_mask", ADVANTAGES, RETURNS, SAMPLED, OLD, "ref_log_prob", RATIOS)
"""Fields with an entry for each token of a completion, of which a step may lack some."""


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What came back of the prompts that were asked."""

    rolled_out: RolledOut
    """Of all completions that were asked for; one that failed has no tokens and no reward. Without confidences where
    neither the sampler's nor old log-probabilities are there."""
    advantage_N: Tensor
    """(N,) float64 verl's own advantages, 0 where there are no tokens, and in groups of equal rewards: verl's mean of
    these is off by rounding, which a deviation of next to nothing makes large."""
    row_N: Tensor
    """(N,) int64 the row of each completion in the batch, -1 where it failed."""
    rows: Rows
    """Of the batch, verl's fillers included."""
    prompt_B: Tensor
    """(B,) int64 tokens of each row's prompt."""
    scored_BT: Tensor
    """(B, T) bool, completion tokens of each row that carry loss."""

    def by_row(self, value: Tensor) -> Tensor:
        """(..., B) of (..., N): what belongs to each completion in the row that holds it, 0 in other rows."""
        found, there_N = value.new_zeros(*value.shape[:-1], len(self.prompt_B)), self.row_N >= 0
        found[..., self.row_N[there_N]] = value[..., there_N]
        return found


def returned(batch: Any, requested: Requested, *, tokens: bool = False) -> Returned:
    """The completions of the prompts that were asked for, of a batch with advantages.

    ``tokens`` says whether a part of the tokens is drawn, by what the sampler was sure of.

    Raises:
        ShapeError: a session with several outputs.
    """
    names = [MASK, ADVANTAGES, "rm_scores", "token_level_rewards", OLD, SAMPLED]
    data = _read(batch, names)  # those there are: verl reads what a step may lack in the same way
    mask = [row.bool() for row in data[MASK].unbind()]
    rewards = data["token_level_rewards" if "token_level_rewards" in data else "rm_scores"].unbind()
    logp = next((data[name].unbind() for name in (SAMPLED, OLD) if name in data), None)
    tokens_B = torch.tensor([int(row.sum()) for row in mask])
    completions = {row: key for row, key in enumerate(batch.keys) if not batch.tags[row].get("is_padding")}
    row_N = torch.tensor(places(completions, requested.uid_Q, requested.size_Q))
    columns = torch.tensor(
        [
            (float(reward.sum()), float(a[m][0]) if m.any() else 0.0)
            for reward, a, m in zip(rewards, data[ADVANTAGES].unbind(), mask, strict=True)
        ],
        dtype=torch.float64,
    )
    for row, key in completions.items():
        if not bool(columns[row, 0].isfinite()):
            raise RewardError(
                f"the reward of {key} is {columns[row, 0]:g}, and verl's advantages need a number for each completion "
                "of a group. Return 0.0 in its place, or let the session fail."
            )
    missing_N = row_N < 0
    reward_N, advantage_N = (
        column.masked_fill(missing_N, value) for column, value in zip(columns[row_N].T, (torch.nan, 0.0), strict=True)
    )
    uncertainty_N = None
    if logp is not None:
        doubt = torch.cat([uncertainty(p[None], m[None]) for p, m in zip(logp, mask, strict=True)])
        uncertainty_N = doubt[row_N].masked_fill(missing_N, 0.0)
    scored_BT = torch.nn.utils.rnn.pad_sequence(mask, batch_first=True)
    found = Rewards.in_groups(reward_N[:, None].contiguous(), torch.tensor(requested.size_Q))
    alone_Q = each_group(lambda missing_QG: (~missing_QG).sum(1) == 1, found.group_N, missing_N)  # keeps its raw reward
    rolled_out = RolledOut(
        rewards=found,
        tokens_N=tokens_B[row_N].masked_fill(missing_N, 0),
        uncertainty_N=uncertainty_N,
        sampled=_sampled(logp, scored_BT, row_N) if tokens else None,
    )
    length_B = torch.tensor([int(tag["seq_len"]) for tag in batch.tags])
    return Returned(
        rolled_out=rolled_out,
        advantage_N=advantage_N.masked_fill((found.zero_variance_Q & ~alone_Q)[found.group_N], 0.0).contiguous(),
        row_N=row_N,
        rows=Rows(length_N=length_B, tokens_N=tokens_B),
        prompt_B=length_B - torch.tensor([len(row) for row in mask]),
        scored_BT=scored_BT,
    )


def _sampled(logp: Sequence[Tensor] | None, scored_BT: Tensor, row_N: Tensor) -> SampledTokens:
    """The tokens of each completion; none of one that failed."""
    logp_BT = torch.full(scored_BT.shape, torch.nan)
    if logp is not None:
        logp_BT = torch.nn.utils.rnn.pad_sequence(list(logp), batch_first=True).float()
    return SampledTokens(logp_NT=logp_BT[row_N], mask_NT=scored_BT[row_N] & (row_N >= 0)[:, None])


def write_advantages(batch: Any, advantage_B: Tensor) -> None:
    """Put other advantages, one for each row, in place of verl's."""
    data = _read(batch, [MASK])
    spread = [mask.float() * value for mask, value in zip(data[MASK].unbind(), advantage_B.tolist(), strict=True)]
    nested = jagged(spread)
    written = TensorDict({ADVANTAGES: nested, RETURNS: nested.clone()}, batch_size=len(spread))
    transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)


def corrected(batch: Any, settings: Any) -> dict[str, float]:
    """verl's rollout correction of rows with old log-probabilities: importance ratios are written, metrics returned.

    ``settings`` is verl's ``algorithm.rollout_correction``, without rejection.
    """
    data = _read(batch, [MASK, OLD, SAMPLED])
    found, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=data.to_padded_tensor()), settings)
    if RATIOS in found.batch:
        ratios = response_to_nested(found.batch[RATIOS], data[MASK])
        written = TensorDict({RATIOS: ratios}, batch_size=len(batch))
        transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)
    return metrics


def mean_entropy(batch: Any, weight_BT: Tensor, tokens_B: Tensor, actor: Any) -> float | None:
    """verl's mean entropy of all rows with a gradient, estimated from what is kept; None where that is nothing."""
    if not weight_BT.any():
        return None
    data = _read(batch, [MASK, "entropy"]).to_padded_tensor()
    weighted_BT = data[MASK] * weight_BT[:, : data[MASK].shape[1]].float()
    tokens_B = tokens_B.clamp_min(1)
    averaged = actor.loss_agg_mode == "seq-mean-token-mean"  # divides by the tokens before the cut
    share_B = data[MASK].sum(1) / tokens_B if averaged else torch.ones(len(tokens_B))
    entropy = agg_loss(
        loss_mat=data["entropy"] * weighted_BT * share_B[:, None],
        loss_mask=data[MASK],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
        batch_num_tokens=weighted_BT.sum(),
        global_batch_size=(weighted_BT.sum(1) / tokens_B).sum(),
    )
    return float(entropy)


def weighed(batch: Any, weight_BT: Tensor, tokens_B: Tensor, method: Method, actor: Any) -> tuple[float, float] | None:
    """What the KL term and the entropy bonus weigh in all rows with a gradient, estimated from what is kept.

    The batch has old log-probabilities, and those of a reference where a KL term counts.

    Returns:
        The sums that ``OtherTerms.after`` takes; None where entropies that count are not there, as in bypass mode.
    """
    data = _read(batch, [MASK, OLD, "ref_log_prob", "entropy"]).to_padded_tensor()
    if method.entropy_coef and "entropy" not in data:
        return None
    weight_BT, tokens_B = weight_BT[:, : data[MASK].shape[1]], tokens_B.clamp_min(1)
    tokens = Tokens(
        logp_BT=data[OLD].double(),
        old_logp_BT=data[OLD].double(),
        ref_logp_BT=data["ref_log_prob"].double() if method.beta else None,
        advantage_B=torch.zeros(len(tokens_B), dtype=torch.float64),
        mask_BT=data[MASK],
        counted_B=tokens_B,
    )

    def kl(tokens: Tokens) -> Tensor:
        return kl_penalty(tokens.logp_BT, tokens.ref_logp_BT, actor.kl_loss_type)

    scale = 1 / tokens_B[:, None] if method.normaliser.per_sequence else 1.0  # verl's bonus is a mean as its loss is
    squares = other_terms(
        replace(method, kl=kl), tokens, weight_BT.double(), data.get("entropy", None), entropy_scale=scale
    )
    square, unit = squares.tolist()
    return square, unit


def cut_batch(batch: Any, keys: list[str], completion_B: Tensor, partition: str) -> Any:
    """Some rows of a batch up to a cut, in another partition of TransferQueue; the whole ones stay as they are.

    ``completion_B`` has the completion tokens, >= 1, that the row of each key keeps.
    """
    names = ["prompts", *OF_ROW, *OF_COMPLETION]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    kept, prompt = completion_B.tolist(), data["prompts"].offsets().diff().tolist()
    columns = {}
    for name, column in data.items():
        ends = [p if name == "prompts" else p + n if name in OF_ROW else n for p, n in zip(prompt, kept, strict=True)]
        columns[name] = jagged([row[:end] for row, end in zip(column.unbind(), ends, strict=True)])
    tag_of = dict(zip(batch.keys, batch.tags, strict=True))
    sizes = zip(keys, prompt, kept, strict=True)
    tags = [{**tag_of[key], "response_len": n, "seq_len": p + n} for key, p, n in sizes]
    fields = TensorDict(columns, batch_size=len(keys))
    found = transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=fields, tags=tags)
    found.extra_info.update(batch.extra_info)
    return found


def jagged(rows: list[Tensor]) -> Tensor:
    """Rows of different lengths as verl keeps them."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _read(batch: Any, names: list[str]) -> TensorDict:
    """Of these fields those that the rows of a batch have."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
