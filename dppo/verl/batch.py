"""What verl's queue holds of a step, read for a plan: one entry per completion that was asked for, in their order."""

from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor

from dppo.step import RolledOut
from dppo.types import Rewards
from dppo.verl.layout import Rows, places
from dppo.verl.prompts import Asked

ADVANTAGES, RETURNS, MASK = "advantages", "returns", "response_mask"


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What came back of the prompts that were asked."""

    rolled_out: RolledOut
    """Of all completions that were asked for; one that failed has no tokens and no reward."""
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
    names = [MASK, ADVANTAGES, "rm_scores", "token_level_rewards", "old_log_probs", "rollout_log_probs"]
    names = [name for name in names if name in _fields(batch)]
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
    mask = [row.bool() for row in data[MASK].unbind()]
    rewards = data["token_level_rewards" if "token_level_rewards" in names else "rm_scores"].unbind()
    logp = data["rollout_log_probs" if "rollout_log_probs" in names else "old_log_probs"].unbind()
    tokens = torch.tensor([int(row.sum()) for row in mask])
    completions = {row: key for row, key in enumerate(batch.keys) if not batch.tags[row].get("is_padding")}
    row_N = torch.tensor(places(completions, asked.uid_Q, asked.size_Q))
    columns = torch.tensor(
        [
            (
                float(reward.sum()),
                float(a[m][0]) if m.any() else 0.0,
                float((1 - p[m].double().exp()).square().sum().sqrt()),
            )
            for reward, a, m, p in zip(rewards, data[ADVANTAGES].unbind(), mask, logp, strict=True)
        ],
        dtype=torch.float64,
    )
    missing_N = row_N < 0
    reward_N, advantage_N, confidence_N = (
        column.masked_fill(missing_N, value)
        for column, value in zip(columns[row_N].T, (torch.nan, 0.0, 0.0), strict=True)
    )
    size_Q = torch.tensor(asked.size_Q)
    rolled_out = RolledOut(
        rewards=Rewards.in_groups(reward_N[:, None].contiguous(), size_Q),
        tokens_N=tokens[row_N].masked_fill(missing_N, 0),
        confidence_N=confidence_N.contiguous(),
    )
    length_N = torch.tensor([int(tag["seq_len"]) for tag in batch.tags])
    return Returned(
        rolled_out=rolled_out,
        advantage_N=advantage_N.contiguous(),
        row_N=row_N,
        rows=Rows(length_N=length_N, tokens_N=tokens),
    )


def _fields(batch: Any) -> set[str]:
    """Names of what the queue holds of a batch."""
    if batch.fields is not None:
        return set(batch.fields)
    first = transfer_queue.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id)
    return set(first.keys())


def write_advantages(batch: Any, advantage_B: Tensor) -> None:
    """Put other advantages in place of verl's.

    Args:
        batch: verl's ``KVBatchMeta``.
        advantage_B: (B,) of each of its rows.
    """
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[MASK])
    spread = [mask.float() * value for mask, value in zip(data[MASK].unbind(), advantage_B.tolist(), strict=True)]
    nested = torch.nested.as_nested_tensor(spread, layout=torch.jagged)
    written = TensorDict({ADVANTAGES: nested, RETURNS: nested.clone()}, batch_size=len(spread))
    transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)
