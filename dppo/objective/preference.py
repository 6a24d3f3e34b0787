"""Weights of pairs of answers, one preferred to the other. Their losses are TRL's own: ``dppo/trl/rows/pairs.py``."""

import torch
from torch import Tensor

from dppo.errors import require


def margin_weights(
    margin_B: Tensor, *, centre: float, scale: float, lowest: float = 0.2, highest: float = 1.8
) -> Tensor:
    """Weights (B,) ``clip(2 * sigmoid(-(margin - centre) / scale), lowest, highest)``, above 1 below ``centre``.

    MADPO-style: the paper weighs pairs by a bounded, falling function of a reward model's margin. Its formula could not
    be seen; this one is 1 at ``centre``.

    Args:
        margin_B: (B,) reward of the preferred answer less the other's, any unit.
        centre: margin of weight 1.
        scale: > 0, in the unit of the margins.
        lowest: weight, in (0, 1].
        highest: weight, >= 1.

    Raises:
        ConfigError: a number out of range.

    Source: in the style of Margin-Adaptive DPO, arXiv:2510.05342.
    """
    bounds = f"lowest={lowest:g}, highest={highest:g}: need 0 < lowest <= 1 <= highest. Write 0.2 and 1.8."
    scaled = f"scale={scale:g} must be > 0. Write scale=1.0."
    require("margin_weights", {scaled: scale > 0, bounds: 0 < lowest <= 1 <= highest})
    return (2 * torch.sigmoid(-(margin_B - centre) / scale)).clamp(lowest, highest)
