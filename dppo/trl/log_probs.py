"""Log-probabilities of kept rows, and the correction between the rollout engine's policy and ours."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.trl.window import MicroBatch, Window

Forward = Callable[[MicroBatch], tuple[Tensor, Tensor | None]]
"""From a micro-batch to (b, width) log-probabilities of its completion tokens, and entropies or None."""


@torch.no_grad()
def fill_log_probs(window: Window, micro_batches: Iterable[MicroBatch], forward: Forward) -> Tensor:
    """(B, T) log-probabilities of the rows in ``micro_batches``, 0 elsewhere."""
    logp_BT = torch.zeros(window.completion_ids.shape, dtype=torch.float32, device=window.completion_ids.device)
    for batch in micro_batches:
        logp, _ = forward(batch)
        logp_BT[batch.rows, : batch.completion_width] = logp.float()
    return logp_BT


def sampling_ratio(
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
