"""What the terms of a loss that ignore the advantage weigh, from completions that were forwarded."""

from dataclasses import replace

import torch
from torch import Tensor

from dppo.methods import Method
from dppo.objective import Tokens


def other_terms(
    method: Method,
    tokens: Tokens,
    weight: Tensor,
    entropy_BT: Tensor | None = None,
    *,
    entropy_scale: float | Tensor = 1.0,
) -> Tensor:
    """(2,) weighted sums of squared gradients: of the other terms, and of what advantages of 1 would have.

    The gradient of a completion is a sum over tokens of a slope times the gradient of the log-probability, whose norm
    goes with ``1 - p``; gradients of tokens are close to uncorrelated. The slope at an advantage of 0 is that of the KL
    term. Of an entropy bonus ``coef * (log p + H)`` is the slope whose mean over all tokens is its gradient, so that
    its square is no less than the gradient's. ``dppo.evidence.OtherTerms`` adds up the sums of all steps.

    Args:
        method: gives the loss, the normaliser and the coefficients.
        tokens: of some completions.
        weight: (B,) their weights, one over the probability of having been kept; (B, T) of their tokens.
        entropy_BT: (B, T) nats; needed where the method has an entropy bonus.
        entropy_scale: denominator of the loss over the number of tokens that the bonus is a mean of, > 0; (B, 1) where
            it differs by completion.
    """
    mask_BT = tokens.mask_BT != 0
    whole_B = mask_BT.sum(1) if tokens.counted_B is None else tokens.counted_B
    tokens_B = whole_B.clamp(min=1)[:, None]
    at_none, at_one = (_slopes(method, tokens, value) for value in (0.0, 1.0))
    unit_BT = at_one - at_none
    if method.entropy_coef and entropy_BT is not None:
        scale = method.entropy_coef * entropy_scale * (tokens_B if method.normaliser.per_sequence else 1.0)
        at_none = at_none + scale * (tokens.logp_BT.detach() + entropy_BT.detach())
    doubt_BT = torch.expm1(tokens.logp_BT.detach())
    weight_BT = weight if weight.dim() == 2 else weight[:, None]
    share_BT = weight_BT / (tokens_B.square() if method.normaliser.per_sequence else 1.0)
    squares = [
        ((slope_BT * doubt_BT).masked_fill(~mask_BT, 0.0).square() * share_BT).sum() for slope_BT in (at_none, unit_BT)
    ]
    return torch.stack(squares)


def _slopes(method: Method, tokens: Tokens, advantage: float) -> Tensor:
    """(B, T) derivative of each token's loss by its log-probability, with the same advantage for all."""
    with torch.enable_grad():
        logp_BT = tokens.logp_BT.detach().requires_grad_()
        moved = replace(tokens, logp_BT=logp_BT, advantage_B=torch.full_like(tokens.advantage_B, advantage))
        return torch.autograd.grad(method.loss(moved).masked_fill(tokens.mask_BT == 0, 0.0).sum(), logp_BT)[0]
