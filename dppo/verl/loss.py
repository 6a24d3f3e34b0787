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
TOKEN_WEIGHT = "pruning_token_weight"
"""The field with what multiplies each completion token beside it, where some are left out."""


def weighted_ppo_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss and its metrics for a micro-batch. What is logged is unweighted; the gradient is weighted.

    Args:
        config: verl's ``ActorConfig``.
        model_output: with ``log_probs``, and ``entropy`` where it was asked for: nested (B, tokens of each row).
        data: verl's micro-batch, with ``pruning_weight`` (B,), and ``pruning_token_weight``, nested (B, completion
            tokens of each row), where tokens are left out.
        dp_group: as for ``ppo_loss``.

    Raises:
        KeyError: the batch has no weights; training without them would be biased.

    Source: Horvitz and Thompson (1952); docs/estimators.md.
    """
    weighted = dict(model_output)
    for name in ("log_probs", "entropy"):
        value = weighted.get(name)
        if value is not None:
            scaled = scaled_gradient(value.values(), _factors(data, value))
            weighted[name] = torch.nested.nested_tensor_from_jagged(scaled, value.offsets())
    return ppo_loss(config=config, model_output=weighted, data=data, dp_group=dp_group)


def _factors(data: Any, value: Any) -> Tensor:
    """(tokens of all rows,) what multiplies the gradient of each entry of a nested output of the model."""
    length_B = value.offsets().diff()
    factor = data[WEIGHT].to(value.values()).repeat_interleave(length_B, output_size=len(value.values()))
    if TOKEN_WEIGHT not in data:
        return factor
    # An output stands one before the token that it is about; those of the prompt's tokens are in no loss.
    of_tokens = [
        torch.nn.functional.pad(weight_T, (length - len(weight_T) - 1, 1))
        for weight_T, length in zip(data[TOKEN_WEIGHT].unbind(), length_B.tolist(), strict=True)
    ]
    return factor * torch.cat(of_tokens).to(factor)
