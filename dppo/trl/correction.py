"""Correction between the sampling policy and the trained one: TRL's ``vllm_importance_sampling_correction``."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.typed import check_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Ratio of the trained policy to the sampling one, truncated or masked; ``ConfigError`` for an unknown mode."""

    mode: str
    """TRL's ``vllm_importance_sampling_mode``."""
    low: float | None
    """Smallest ratio, >= 0; None for 0."""
    high: float | None
    """Largest ratio; None for no limit."""

    def __post_init__(self) -> None:
        modes = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
        check_range("GRPOConfig", "vllm_importance_sampling_mode", self.mode, modes, modes[0])

    def __call__(self, old_logp_BT: Tensor, sampling_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """(B, T) ratios of tokens, or (B, 1) of sequences; 1 where ``mask_BT`` is 0 or the sampler reported NaN."""
        difference = torch.nan_to_num((old_logp_BT - sampling_logp_BT) * mask_BT, nan=0.0)
        if self.mode.startswith("sequence"):
            difference = difference.sum(1, keepdim=True)
        ratio = difference.exp()
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


class CorrectionMetrics:
    """TRL's ``sampling/*`` metrics over the completions kept. Differences beyond rounding show stale weights."""

    def __init__(self) -> None:
        self._sums, self._largest = list[Tensor](), list[Tensor]()

    def add(self, old_logp_BT: Tensor, sampling_logp_BT: Tensor, ratio: Tensor, mask_BT: Tensor) -> None:
        """Add completions; tokens whose ``mask_BT`` is 0 are left out. Nothing waits for the device."""
        mask_BT = mask_BT.bool()
        known_BT = mask_BT & ~sampling_logp_BT.isnan()
        difference = torch.where(known_BT, (old_logp_BT - sampling_logp_BT).abs(), 0.0)
        kept = mask_BT if ratio.shape[1] > 1 else mask_BT.any(1, keepdim=True)
        sums = difference.sum(), known_BT.sum(), torch.where(kept, ratio, 0.0).sum(), kept.sum()
        ends = (each.masked_fill(~kept, -math.inf).max() for each in (ratio, -ratio))
        largest = difference.max(), *ends
        self._sums.append(torch.stack([each.detach().float() for each in sums]))
        self._largest.append(torch.stack([each.detach().float() for each in largest]))

    def reduced(self, accelerator: Any) -> dict[str, float]:
        """The metrics over all ranks, which call together; empty if nothing was added. Start again."""
        nothing = torch.tensor([0.0, -math.inf, -math.inf], device=accelerator.device)
        sums = torch.stack([torch.zeros(4, device=accelerator.device), *self._sums]).sum(0)
        largest = torch.stack([nothing, *self._largest]).amax(0)
        self._sums, self._largest = [], []
        found = accelerator.gather(torch.cat([sums, largest])[None])
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
