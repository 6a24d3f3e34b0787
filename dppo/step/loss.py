"""Loss of a micro-batch of tokens, and the gradient size of its terms without an advantage."""

from dataclasses import replace

import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.objective import Tokens, weighted_sum
from dppo.step.records import StepSizes


def micro_batch_loss(
    method: Method,
    tokens: Tokens,
    weight: Tensor,
    sizes: StepSizes,
    *,
    entropy_BT: Tensor | None = None,
    router_loss: Tensor | None = None,
) -> Tensor:
    """() this micro-batch's part of the loss of a whole pass: parts of all micro-batches and ranks add up to it.

    ``weight`` is (B,) of completions in this optimizer step, or (B, T) of their tokens; ``sizes`` those of the plan.
    An entropy bonus needs ``entropy_BT`` (B, T) in nats, with its gradient. A router loss needs ``router_loss``, () of
    the weighted tokens of this micro-batch, prompts included, times the sum of their weights.

    Source: docs/estimators.md.
    """
    mask_BT, per_sequence = tokens.mask_BT, method.normaliser.per_sequence
    total = weighted_sum(method.loss(tokens), mask_BT, weight, per_sequence=per_sequence, counted_B=tokens.counted_B)
    loss = total / sizes.denominator
    if method.entropy_coef:
        if entropy_BT is None:
            raise ConfigError(f"entropy_coef={method.entropy_coef:g} needs entropies. Give entropy_BT, or write 0.")
        entropy = weighted_sum(entropy_BT, mask_BT, weight, per_sequence=False) / max(sizes.tokens, 1.0)
        loss = loss - method.entropy_coef * entropy
    if method.router_coef:
        if router_loss is None:
            needs = f"router_coef={method.router_coef:g} needs the router's loss"
            raise ConfigError(f"{needs}. Give router_loss, or write 0.")
        loss = loss + method.router_coef * router_loss / max(sizes.attended, 1.0)
    return loss


def other_terms(
    method: Method,
    tokens: Tokens,
    weight: Tensor,
    entropy_BT: Tensor | None = None,
    *,
    entropy_scale: float | Tensor = 1.0,
) -> Tensor:
    """(2,) weighted sums of squared gradients: of the other terms, and of advantages of 1. See ``OtherTerms``.

    The gradient of a completion is a sum over tokens of a slope times the gradient of the log-probability, whose norm
    goes with ``1 - p``; gradients of tokens are close to uncorrelated. The slope at an advantage of 0 is that of the KL
    term. An entropy bonus has the slope ``coef * (log p + H)``: its mean over all tokens is the bonus's gradient, so
    its square is at least the gradient's.

    Arguments are those of ``micro_batch_loss``. ``entropy_scale`` > 0 is the denominator of the loss over the number of
    tokens that the bonus is a mean of; (B, 1) if it differs by completion.
    """
    mask_BT = tokens.mask_BT != 0
    whole_B = mask_BT.sum(1) if tokens.counted_B is None else tokens.counted_B
    tokens_B = whole_B.clamp(min=1)[:, None]
    at_none, at_one = (_slopes(method, tokens, value) for value in (0.0, 1.0))
    unit_BT = at_one - at_none
    if method.entropy_coef and entropy_BT is not None:
        scale = method.entropy_coef * entropy_scale * (tokens_B if method.normaliser.per_sequence else 1.0)
        at_none = at_none + scale * (tokens.logp_BT.detach() + entropy_BT.detach())
    one_minus_p_BT = torch.expm1(tokens.logp_BT.detach())
    weight_BT = weight if weight.dim() == 2 else weight[:, None]
    share_BT = weight_BT / (tokens_B.square() if method.normaliser.per_sequence else 1.0)
    sizes_BT = ((slope_BT * one_minus_p_BT).masked_fill(~mask_BT, 0.0) for slope_BT in (at_none, unit_BT))
    return torch.stack([(size_BT.square() * share_BT).sum() for size_BT in sizes_BT])


def _slopes(method: Method, tokens: Tokens, advantage: float) -> Tensor:
    """(B, T) derivative of each token's loss by its log-probability, with the same advantage for all."""
    with torch.enable_grad():
        logp_BT = tokens.logp_BT.detach().requires_grad_()
        moved = replace(tokens, logp_BT=logp_BT, advantage_B=torch.full_like(tokens.advantage_B, advantage))
        return torch.autograd.grad(method.loss(moved).masked_fill(tokens.mask_BT == 0, 0.0).sum(), logp_BT)[0]
