"""From the tokens of a micro-batch to its part of the step's loss."""

from torch import Tensor

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.objective import Tokens, weighted_sum


def micro_batch_loss(
    method: Method,
    tokens: Tokens,
    weight: Tensor,
    *,
    denominator: float,
    all_tokens: float,
    entropy_BT: Tensor | None = None,
    router_loss: Tensor | None = None,
    all_attended: float = 0.0,
) -> Tensor:
    """() this micro-batch's part of the loss of a whole pass: parts of all micro-batches and ranks add up to it.

    Args:
        method: gives the loss, the normaliser, and the entropy bonus.
        tokens: of some completions.
        weight: (B,) their weights in this optimizer step, or (B, T) those of their tokens.
        denominator: ``StepPlan.denominator``.
        all_tokens: ``StepPlan.tokens``, over which an entropy bonus is a mean.
        entropy_BT: (B, T) nats, with its gradient; needed where the method has an entropy bonus.
        router_loss: () of the weighted tokens of this micro-batch, prompts included, times the sum of their weights.
        all_attended: ``StepPlan.attended``, over which the router loss is a mean.

    Raises:
        ConfigError: the method has an entropy bonus or a router loss, and what it needs is missing.

    Source: docs/estimators.md.
    """
    mask_BT, per_sequence = tokens.mask_BT, method.normaliser.per_sequence
    total = weighted_sum(method.loss(tokens), mask_BT, weight, per_sequence=per_sequence, counted_B=tokens.counted_B)
    loss = total / denominator
    if method.entropy_coef:
        if entropy_BT is None:
            raise ConfigError(f"entropy_coef={method.entropy_coef:g} needs entropies. Give entropy_BT, or write 0.")
        entropy = weighted_sum(entropy_BT, mask_BT, weight, per_sequence=False) / max(all_tokens, 1.0)
        loss = loss - method.entropy_coef * entropy
    if method.router_coef:
        if router_loss is None:
            raise ConfigError(
                f"router_coef={method.router_coef:g} needs the router's loss. Give router_loss, or write 0."
            )
        loss = loss + method.router_coef * router_loss / max(all_attended, 1.0)
    return loss
