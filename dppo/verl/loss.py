"""verl's own loss, whose gradient is weighted by completion: policy, KL and entropy terms at once, nothing copied.

``rollout_is_weights``, the weights that verl has itself, reach the policy term alone. Every term of ``ppo_loss`` is a
function of log-probabilities and entropies of one row, so weights on the gradient of these reach all of them.
"""

from typing import Any

import torch
from torch import Tensor
from verl.workers.utils.losses import ppo_loss  # pyright: ignore[reportMissingImports]

from dppo.verl.layout import scaled_gradient

WEIGHT = "pruning_weight"
"""The field of a batch with one weight per row."""


def weighted_ppo_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss and its metrics for a micro-batch. What is logged is unweighted; the gradient is weighted.

    Args:
        config: verl's ``ActorConfig``.
        model_output: with ``log_probs``, and ``entropy`` where it was asked for: nested (B, tokens of each row).
        data: verl's micro-batch, with ``pruning_weight`` (B,).
        dp_group: as for ``ppo_loss``.

    Raises:
        KeyError: the batch has no weights; training without them would be biased.

    Source: Horvitz and Thompson (1952); docs/estimators.md.
    """
    weight_B = data[WEIGHT]
    weighted = dict(model_output)
    for name in ("log_probs", "entropy"):
        value = weighted.get(name)
        if value is not None:
            factor = weight_B.to(value.values()).repeat_interleave(value.offsets().diff())
            scaled = scaled_gradient(value.values(), factor)
            weighted[name] = torch.nested.nested_tensor_from_jagged(scaled, value.offsets())
    return ppo_loss(config=config, model_output=weighted, data=data, dp_group=dp_group)
