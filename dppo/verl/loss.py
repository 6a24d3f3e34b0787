"""verl's own loss with a gradient that is weighted by completion: policy, KL and entropy terms at once.

Each term of ``ppo_loss`` is a function of log-probabilities and entropies of one row, so weights on their gradient
reach all terms. verl's ``rollout_is_weights`` reach the policy term alone.
"""

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty  # pyright: ignore[reportMissingImports]
from verl.utils.metric import Metric  # pyright: ignore[reportMissingImports]
from verl.workers.utils.losses import ppo_loss  # pyright: ignore[reportMissingImports]
from verl.workers.utils.padding import no_padding_2_padding  # pyright: ignore[reportMissingImports]

from dppo.verl.layout import scaled_gradient

WEIGHT = "pruning_weight"
"""The field of a batch with the weight of each completion token, nested (B, completion tokens); 0 if it is left out."""


def weighted_ppo_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """verl's loss and metrics of a micro-batch. The gradient is weighted, and so are KL and entropy as logged.

    ``model_output`` has ``log_probs``, and ``entropy`` if it is computed: nested (B, tokens of each row). A micro-batch
    without ``WEIGHT`` is a ``KeyError``: training without weights would be biased.

    Source: Horvitz and Thompson (1952); docs/estimators.md.
    """
    weighted = dict(model_output)
    for name in ("log_probs", "entropy"):
        if (value := weighted.get(name)) is not None:
            scaled = scaled_gradient(value.values(), _factors(data[WEIGHT], value))
            weighted[name] = torch.nested.nested_tensor_from_jagged(scaled, value.offsets())
    loss, metrics = ppo_loss(config=config, model_output=weighted, data=data, dp_group=dp_group)
    with torch.no_grad():
        metrics.update(_weighted_terms(config, model_output, data, metrics))
    return loss, metrics


def _weighted_terms(config: Any, model_output: Any, data: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    """Means of the KL term and the entropy bonus over all rows, estimated from the kept ones as their gradients are."""
    padded, terms = data.select("response_mask", "ref_log_prob", WEIGHT, strict=False).to_padded_tensor(), {}
    mask_BT, weight_BT = padded["response_mask"].bool(), padded[WEIGHT]
    if config.use_kl_loss:
        logp_BT = no_padding_2_padding(model_output["log_probs"], data)
        terms["kl_loss"] = kl_penalty(logp_BT, padded["ref_log_prob"], config.kl_loss_type)
    if config.entropy_coeff and model_output.get("entropy") is not None:
        terms["actor/entropy_loss"] = no_padding_2_padding(model_output["entropy"], data)
    found = {}
    for name, term_BT in terms.items():
        value = agg_loss(term_BT * weight_BT, mask_BT, config.loss_agg_mode, **config.global_batch_info)
        found[name] = Metric(value=value, aggregation=metrics[name].aggregation)
    return found


def _factors(weight: Tensor, value: Any) -> Tensor:
    """(tokens of all rows,) weight of the gradient of each entry of ``value``, a nested output of the model."""
    # The output for a token is at the place before it. Those for prompt tokens are in no loss: their weight is 0.
    factors = [
        torch.nn.functional.pad(weight_T, (length - len(weight_T) - 1, 1))
        for weight_T, length in zip(weight.unbind(), value.offsets().diff().tolist(), strict=True)
    ]
    return torch.cat(factors).to(value.values())
