"""Log-probabilities of completions kept, and the correction between the rollout engine's policy and ours."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.packing.forward import Scored
from dppo.trl.batch import MicroBatch, RankBatch


@torch.no_grad()
def fill_log_probs(
    rank_batch: RankBatch, micro_batches: Iterable[MicroBatch], forward: Callable[[MicroBatch], Scored]
) -> Tensor:
    """(B, T) log-probabilities of the rows in ``micro_batches``, 0 elsewhere."""
    logp_BT = torch.zeros(rank_batch.completion_ids.shape, dtype=torch.float32, device=rank_batch.completion_ids.device)
    for batch in micro_batches:
        logp_BT[batch.rows, : batch.completion_width] = forward(batch).logp_BT.float()
    return logp_BT


def correction(
    old_logp_BT: Tensor, sampling_logp_BT: Tensor, mask_BT: Tensor, *, mode: str, low: float | None, high: float | None
) -> Tensor:
    """Importance ratio from the policy the rollout engine sampled with to the trained one, truncated or masked.

    Args:
        old_logp_BT: (B, T) log-probabilities under the trained policy when it generated.
        sampling_logp_BT: (B, T) as the engine reported them; NaN where it could not, which counts as no difference.
        mask_BT: (B, T) tokens that carry loss.
        mode: TRL's ``vllm_importance_sampling_mode``: ``token_`` or ``sequence_``, then ``truncate`` or ``mask``.
        low: smallest ratio that is kept, or None.
        high: largest ratio that is kept, or None.

    Returns:
        (B, T) for token modes, (B, 1) for sequence modes; detached.

    Raises:
        ConfigError: if ``mode`` is none of the four.
    """
    level, _, action = mode.partition("_")
    if level not in ("token", "sequence") or action not in ("truncate", "mask"):
        raise ConfigError(
            f"vllm_importance_sampling_mode={mode!r} is not one of 'token_truncate', 'token_mask', "
            "'sequence_truncate', 'sequence_mask'."
        )
    difference = torch.nan_to_num((old_logp_BT - sampling_logp_BT) * mask_BT, nan=0.0)
    if level == "sequence":
        difference = difference.sum(1, keepdim=True)
    ratio = difference.exp()
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    if action == "truncate":
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def log_correction(
    old_logp_BT: Tensor, sampling_logp_BT: Tensor, ratio: Tensor, mask_BT: Tensor, accelerator: Any
) -> dict[str, float]:
    """TRL's ``sampling/*`` figures over the completions kept: how far the rollout engine is from the trained policy.

    The alarm for stale weights: with the trainer's own weights in the engine, differences are those of rounding.

    Args:
        old_logp_BT: (B, T) under the trained policy when it generated.
        sampling_logp_BT: (B, T) as the engine reported them, NaN where it could not.
        ratio: (B, T) or (B, 1) from ``correction``.
        mask_BT: (B, T) tokens of kept completions that carry loss.
        accelerator: of the run; all ranks call together.
    """
    known_BT = mask_BT.bool() & ~sampling_logp_BT.isnan()
    difference = (old_logp_BT - sampling_logp_BT)[known_BT].abs().float()
    kept = mask_BT.bool() if ratio.shape[1] > 1 else mask_BT.bool().any(1, keepdim=True)
    ratio = ratio[kept].float()
    none = ratio.new_tensor([0.0])
    here = torch.stack(
        [
            difference.sum(),
            none.new_tensor(float(len(difference))),
            torch.cat([difference, none]).max(),
            ratio.sum(),
            none.new_tensor(float(len(ratio))),
            ratio.min() if len(ratio) else none.new_tensor(math.inf),
            ratio.max() if len(ratio) else none.new_tensor(-math.inf),
        ]
    )
    of_ranks = accelerator.gather(here[None])
    total = of_ranks.sum(0)
    return {
        "sampling/sampling_logp_difference/mean": float(total[0] / total[1].clamp(min=1)),
        "sampling/sampling_logp_difference/max": float(of_ranks[:, 2].max()),
        "sampling/importance_sampling_ratio/mean": float(total[3] / total[4].clamp(min=1)),
        "sampling/importance_sampling_ratio/min": float(of_ranks[:, 5].min()),
        "sampling/importance_sampling_ratio/max": float(of_ranks[:, 6].max()),
    }
