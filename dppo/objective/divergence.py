"""Trust regions by divergence: tokens whose probability has moved too far from the sampler's are left out.

The mask is by a difference of *probabilities*, a clipped ratio by their quotient: a rare token may have a large ratio
and still hardly move the distribution. Both policies are seen at the sampled token alone, as two outcomes: this token,
or any other. The paper's masks over the sampler's most likely tokens need log-probabilities of tokens that were not
sampled, which no trainer records.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dppo.objective.losses import Tokens

Divergence = Callable[[Tensor, Tensor], Tensor]
"""``divergence(behaviour_logp, logp)``: distance of two log-probabilities of the same tokens, >= 0."""


def binary_tv(behaviour_logp: Tensor, logp: Tensor) -> Tensor:
    """Total variation between "this token" and "any other", ``|pi - mu|``, in [0, 1].

    Source: Rethinking the Trust Region in LLM Reinforcement Learning (arXiv:2602.04879).
    """
    return (logp.exp() - behaviour_logp.exp()).abs()


def binary_kl(behaviour_logp: Tensor, logp: Tensor) -> Tensor:
    """KL divergence of the policy from the sampler over "this token" and "any other", in nats, >= 0.

    ``mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))`` with ``mu`` the policy that sampled and ``pi`` the one in
    training, from log-probabilities of the same tokens in nats; infinite only if a policy has become certain.

    Source: Rethinking the Trust Region in LLM Reinforcement Learning (arXiv:2602.04879).
    """
    mu, other, other_now = behaviour_logp.exp(), -torch.expm1(behaviour_logp), -torch.expm1(logp)
    rest = torch.where(other > 0, other * (other.log() - other_now.log()), 0.0)
    return mu * (behaviour_logp - logp) + rest


def divergence_ppo(
    tokens: Tokens,
    *,
    divergence: Divergence = binary_tv,
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    ratio_max: float = 20.0,
) -> Tensor:
    """(B, T) loss of each token, ``-min(ratio, ratio_max) * A * logp`` with the capped ratio held constant, or 0.

    With an advantage above 0 a token is left out if it has become more likely by more than ``delta_high``. With another
    advantage it is left out if it has become less likely by more than ``delta_low``. The ratio is to the policy that
    sampled: to the rollout engine's log-probabilities if they are there, else to the old policy's. It contains the
    correction between the two, so ``correction_B1`` is not applied.

    ``delta_low`` and ``delta_high`` are >= 0, in the unit of ``divergence``; ``ratio_max`` is > 0.

    Source: Divergence Proximal Policy Optimization (arXiv:2602.04879); 0.15 is for total variation, KL has 0.05.
    """
    with torch.no_grad():
        behaviour_BT = _behaviour(tokens)
        log_ratio_BT = tokens.logp_BT - behaviour_BT
        far_BT = divergence(behaviour_BT, tokens.logp_BT)
        up_B1 = tokens.advantage_B[:, None] > 0
        too_high_BT = up_B1 & (log_ratio_BT > 0) & (far_BT > delta_high)
        too_low_BT = ~up_B1 & (log_ratio_BT < 0) & (far_BT > delta_low)
        left_out_BT = too_high_BT | too_low_BT | (tokens.mask_BT == 0)
        ratio_BT = log_ratio_BT.exp().clamp(max=ratio_max).masked_fill(left_out_BT, 0.0)
    return -ratio_BT * tokens.advantage_B[:, None] * tokens.logp_BT.masked_fill(left_out_BT, 0.0)


def _behaviour(tokens: Tokens) -> Tensor:
    """(B, T) log-probabilities under the policy that sampled; the old policy's if the engine reported none."""
    if tokens.sampler_logp_BT is None:
        return tokens.old_logp_BT
    return torch.where(tokens.sampler_logp_BT.isfinite(), tokens.sampler_logp_BT, tokens.old_logp_BT)
