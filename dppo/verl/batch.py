"""What verl's queue holds of a step, read for a plan, and what verl computes on all rows where only some are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor
from verl.protocol import DataProto  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.core_algos import agg_loss  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.rollout_corr_helper import (  # pyright: ignore[reportMissingImports]
    compute_rollout_correction_and_add_to_batch,
)
from verl.workers.utils.padding import response_to_nested  # pyright: ignore[reportMissingImports]

from dppo.pruning import confidence
from dppo.step import RolledOut
from dppo.types import Rewards
from dppo.verl.layout import Rows, places
from dppo.verl.prompts import Asked

ADVANTAGES, RETURNS, MASK = "advantages", "returns", "response_mask"
SAMPLED, OLD, RATIOS = "rollout_log_probs", "old_log_probs", "rollout_is_weights"


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What came back of the prompts that were asked."""

    rolled_out: RolledOut
    """Of all completions that were asked for; one that failed has no tokens and no reward. Without confidences where
    neither the sampler's nor old log-probabilities are there."""
    advantage_N: Tensor
    """(N,) float64 verl's own advantages, 0 where there are no tokens."""
    row_N: Tensor
    """(N,) int64 the row of each completion in the batch, -1 where it failed."""
    rows: Rows
    """Of the batch, verl's fillers included."""


def returned(batch: Any, asked: Asked) -> Returned:
    """The completions of a step.

    Args:
        batch: verl's ``KVBatchMeta``, with advantages.
        asked: the prompts of the step.

    Raises:
        ShapeError: a session with several outputs.
    """
    names = [MASK, ADVANTAGES, "rm_scores", "token_level_rewards", OLD, SAMPLED]
    data = _read(batch, names)  # those there are: verl reads what a step may lack in the same way
    mask = [row.bool() for row in data[MASK].unbind()]
    rewards = data["token_level_rewards" if "token_level_rewards" in data else "rm_scores"].unbind()
    logp = next((data[name].unbind() for name in (SAMPLED, OLD) if name in data), None)
    tokens = torch.tensor([int(row.sum()) for row in mask])
    completions = {row: key for row, key in enumerate(batch.keys) if not batch.tags[row].get("is_padding")}
    row_N = torch.tensor(places(completions, asked.uid_Q, asked.size_Q))
    columns = torch.tensor(
        [
            (float(reward.sum()), float(a[m][0]) if m.any() else 0.0)
            for reward, a, m in zip(rewards, data[ADVANTAGES].unbind(), mask, strict=True)
        ],
        dtype=torch.float64,
    )
    missing_N = row_N < 0
    reward_N, advantage_N = (
        column.masked_fill(missing_N, value) for column, value in zip(columns[row_N].T, (torch.nan, 0.0), strict=True)
    )
    confidence_N = None
    if logp is not None:
        doubt = torch.cat([confidence(p[None], m[None]) for p, m in zip(logp, mask, strict=True)])
        confidence_N = doubt[row_N].masked_fill(missing_N, 0.0)
    size_Q = torch.tensor(asked.size_Q)
    rolled_out = RolledOut(
        rewards=Rewards.in_groups(reward_N[:, None].contiguous(), size_Q),
        tokens_N=tokens[row_N].masked_fill(missing_N, 0),
        confidence_N=confidence_N,
    )
    length_N = torch.tensor([int(tag["seq_len"]) for tag in batch.tags])
    return Returned(
        rolled_out=rolled_out,
        advantage_N=advantage_N.contiguous(),
        row_N=row_N,
        rows=Rows(length_N=length_N, tokens_N=tokens),
    )


def write_advantages(batch: Any, advantage_B: Tensor) -> None:
    """Put other advantages in place of verl's.

    Args:
        batch: verl's ``KVBatchMeta``.
        advantage_B: (B,) of each of its rows.
    """
    data = _read(batch, [MASK])
    spread = [mask.float() * value for mask, value in zip(data[MASK].unbind(), advantage_B.tolist(), strict=True)]
    nested = torch.nested.as_nested_tensor(spread, layout=torch.jagged)
    written = TensorDict({ADVANTAGES: nested, RETURNS: nested.clone()}, batch_size=len(spread))
    transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)


def corrected(batch: Any, settings: Any) -> dict[str, float]:
    """verl's rollout correction of some rows: their importance ratios are written, and its metrics returned.

    Args:
        batch: verl's ``KVBatchMeta``, with old log-probabilities.
        settings: verl's ``algorithm.rollout_correction``, without rejection.
    """
    data = _read(batch, [MASK, OLD, SAMPLED])
    found, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=data.to_padded_tensor()), settings)
    if RATIOS in found.batch:
        ratios = response_to_nested(found.batch[RATIOS], data[MASK])
        written = TensorDict({RATIOS: ratios}, batch_size=len(batch))
        transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)
    return metrics


def mean_entropy(batch: Any, weights: Mapping[str, float], actor: Any) -> float | None:
    """verl's mean entropy of all rows with a gradient, estimated from those that are kept; None where there are none.

    Args:
        batch: verl's ``KVBatchMeta``, with entropies.
        weights: of each key.
        actor: verl's configuration of the actor.
    """
    weight_B = torch.tensor([weights[key] for key in batch.keys])
    if not weight_B.any():
        return None
    data = _read(batch, [MASK, "entropy"]).to_padded_tensor()
    entropy = agg_loss(
        loss_mat=data["entropy"] * weight_B[:, None],
        loss_mask=data[MASK],
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor,
        batch_num_tokens=(data[MASK] * weight_B[:, None]).sum(),
        global_batch_size=weight_B.sum(),
    )
    return float(entropy)


def _read(batch: Any, names: list[str]) -> TensorDict:
    """Of these fields those that the rows of a batch have."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
