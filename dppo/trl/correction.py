"""Correction between the sampling policy and the trained one: TRL's ``vllm_importance_sampling_correction``."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dppo.typed import check_range

Correction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``sampling_ratio`` with the settings of a trainer."""
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def sampling_ratio(trainer: Any, old_logp_BT: Tensor, sampling_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Ratio of the trained policy to the sampling one, truncated or masked; ``ConfigError`` for an unknown mode.

    (B, T) of tokens, or (B, 1) of sequences; 1 where ``mask_BT`` is 0 or the sampler reported NaN.
    """
    mode: str = trainer.vllm_importance_sampling_mode
    check_range("GRPOConfig", "vllm_importance_sampling_mode", mode, MODES, MODES[0])
    difference = torch.nan_to_num((old_logp_BT - sampling_logp_BT) * mask_BT, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(1, keepdim=True)
    ratio = difference.exp()
    low, high = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


class CorrectionMetrics:
    """TRL's ``sampling/*`` metrics over the completions kept. Differences beyond rounding show stale weights."""

    def __init__(self) -> None:
        self._parts = list[Tensor]()
        """(7,) each: four sums, then three maxima."""

    def add(self, old_logp_BT: Tensor, sampling_logp_BT: Tensor, ratio: Tensor, mask_BT: Tensor) -> None:
        """Add completions; tokens whose ``mask_BT`` is 0 are left out. Nothing waits for the device."""
        mask_BT = mask_BT.bool()
        known_BT = mask_BT & ~sampling_logp_BT.isnan()
        difference = torch.where(known_BT, (old_logp_BT - sampling_logp_BT).abs(), 0.0)
        kept = mask_BT if ratio.shape[1] > 1 else mask_BT.any(1, keepdim=True)
        sums = difference.sum(), known_BT.sum(), torch.where(kept, ratio, 0.0).sum(), kept.sum()
        ends = (each.masked_fill(~kept, -math.inf).max() for each in (ratio, -ratio))
        self._parts.append(torch.stack([each.detach().float() for each in (*sums, difference.max(), *ends)]))

    def reduced(self, accelerator: Any) -> dict[str, float]:
        """The metrics over all ranks, which call together; empty if nothing was added. Start again."""
        nothing = torch.tensor([0.0] * 5 + [-math.inf] * 2, device=accelerator.device)
        parts_P7, self._parts = torch.stack([nothing, *self._parts]), []
        found = accelerator.gather(torch.cat([parts_P7[:, :4].sum(0), parts_P7[:, 4:].amax(0)])[None])
        difference, tokens, ratio, counted = found[:, :4].sum(0).tolist()
        most, high, low = found[:, 4:].amax(0).tolist()
        if not counted:
            return {}
        return {
            "sampling/sampling_logp_difference/mean": difference / max(tokens, 1.0),
            "sampling/sampling_logp_difference/max": most,
            "sampling/importance_sampling_ratio/mean": ratio / counted,
            "sampling/importance_sampling_ratio/min": -low,
            "sampling/importance_sampling_ratio/max": high,
        }
