"""The correction between the policy that the rollout engine samples with and the one that is trained.

Source: truncated importance sampling of rollout engines, TRL's ``vllm_importance_sampling_correction``.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Ratio of the trained policy to the sampling one, truncated or masked.

    Raises:
        ConfigError: an unknown mode.
    """

    mode: str
    """TRL's ``vllm_importance_sampling_mode``: ``token_`` or ``sequence_``, then ``truncate`` or ``mask``."""
    low: float | None
    """Smallest ratio, >= 0; None for 0."""
    high: float | None
    """Largest ratio; None for no limit."""

    def __post_init__(self) -> None:
        level, _, action = self.mode.partition("_")
        if level not in ("token", "sequence") or action not in ("truncate", "mask"):
            raise ConfigError(
                f"vllm_importance_sampling_mode={self.mode!r} is not one of 'token_truncate', 'token_mask', "
                "'sequence_truncate', 'sequence_mask'."
            )

    @classmethod
    def of_trainer(cls, trainer: Any) -> "Correction | None":
        """The correction of a ``GRPOTrainer``; None if it samples without vLLM, or has it switched off."""
        if not (getattr(trainer, "use_vllm", False) and trainer.vllm_importance_sampling_correction):
            return None
        return cls(
            mode=trainer.vllm_importance_sampling_mode,
            low=trainer.vllm_importance_sampling_clip_min,
            high=trainer.vllm_importance_sampling_clip_max,
        )

    def __call__(self, old_logp_BT: Tensor, sampling_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """(B, T) ratios of tokens, or (B, 1) of sequences; 1 where ``mask_BT`` is 0.

        NaN of the sampler, which could not tell, counts as no difference.
        """
        difference = torch.nan_to_num((old_logp_BT - sampling_logp_BT) * mask_BT, nan=0.0)
        if self.mode.startswith("sequence"):
            difference = difference.sum(1, keepdim=True)
        ratio = difference.exp()
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


class CorrectionMetrics:
    """TRL's ``sampling/*`` metrics over the completions kept: how far the rollout engine is from the trained policy.

    The alarm for stale weights: with the trainer's own weights in the engine, differences are those of rounding.
    """

    def __init__(self) -> None:
        self._found: list[Tensor] = []

    def add(self, old_logp_BT: Tensor, sampling_logp_BT: Tensor, ratio: Tensor, mask_BT: Tensor) -> None:
        """Add completions; tokens whose ``mask_BT`` is 0 are left out. Nothing waits for the device."""
        mask_BT = mask_BT.bool()
        known_BT = mask_BT & ~sampling_logp_BT.isnan()
        difference = torch.where(known_BT, (old_logp_BT - sampling_logp_BT).abs(), 0.0).float()
        kept = mask_BT if ratio.shape[1] > 1 else mask_BT.any(1, keepdim=True)
        ratio = ratio.float()
        found = [
            difference.sum(),
            known_BT.sum(),
            difference.max(),
            torch.where(kept, ratio, 0.0).sum(),
            kept.sum(),
            torch.where(kept, ratio, math.inf).min(),
            torch.where(kept, ratio, -math.inf).max(),
        ]
        self._found.append(torch.stack([each.detach().float() for each in found]))

    def reduced(self, accelerator: Any) -> dict[str, float]:
        """The metrics over all ranks, which call together, and start again; none if nothing was added."""
        none = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, math.inf, -math.inf], device=accelerator.device)
        here, self._found = torch.stack([none, *self._found]), []
        here = torch.cat([here[:, :5].sum(0), here[:, 5].min()[None], here[:, 6].max()[None], here[:, 2].max()[None]])
        found = accelerator.gather(here[None])
        difference, tokens, _, ratio, counted = found[:, :5].sum(0).tolist()
        if not counted:
            return {}
        return {
            "sampling/sampling_logp_difference/mean": difference / max(tokens, 1.0),
            "sampling/sampling_logp_difference/max": float(found[:, 7].max()),
            "sampling/importance_sampling_ratio/mean": ratio / counted,
            "sampling/importance_sampling_ratio/min": float(found[:, 5].min()),
            "sampling/importance_sampling_ratio/max": float(found[:, 6].max()),
        }
