"""Regression of a policy's log-ratio to a reference on an advantage that was estimated beforehand: A*-PO.

Its loss of a completion with log-ratio ``L = sum_t log pi_t - log ref_t`` and advantage ``A = r - V*`` is
``(beta L - A)^2``. Written out, ``2 beta (beta L^2 / 2 - A L) + A^2``: a policy gradient and a KL term of whole
completions with the coefficient beta, times ``2 beta``, and a constant. The first is ``advantage_regression``, the
second ``squared_log_ratio``. ``loss + beta * kl``, as everywhere, then has the gradient of the squared loss over
``2 beta``: beta means what it means in other methods, and the scale of the gradient does not go with it.
"""

import math

import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import ConfigError, raise_problems
from dppo.objective.advantages import AdvantageRule
from dppo.objective.losses import Tokens
from dppo.types import Rewards


def optimal_value(reward_PG: Tensor, *, beta: float) -> Tensor:
    """(P,) float64 ``beta log mean_i exp(r_i / beta)``: the best value of each prompt within reach of a reference.

    It is what the policy is worth that has the highest reward less ``beta`` times its KL divergence from the reference,
    and lies between the mean of the rewards (large beta) and the largest (small beta).

    Args:
        reward_PG: (P, G) rewards of completions that the reference sampled, finite, any unit.
        beta: in the unit of the rewards, > 0; 0.5 in the paper.

    Raises:
        ConfigError: a beta that is not above 0, or rewards that are not finite numbers (P, G).

    Source: A*-PO (arXiv:2505.20686), stage 1.
    """
    if not (math.isfinite(beta) and beta > 0):
        raise_problems("optimal_value", [f"beta={beta!r} must be > 0 and finite. Write beta=0.5."])
    if reward_PG.dim() != 2 or not reward_PG.shape[1] or not reward_PG.isfinite().all():
        raise_problems("optimal_value", ["reward_PG must be finite numbers (prompts, samples). Try torch.ones(4, 8)."])
    reward_PG = reward_PG.double()
    return beta * (torch.logsumexp(reward_PG / beta, 1) - math.log(reward_PG.shape[1]))


def value_advantages(rewards: Rewards, context: StepContext) -> Tensor:
    """(N,) float64 each completion's total reward minus the value of its prompt; its group has no part in it.

    Groups have any size, 1 included. A completion that no function scored gets 0.

    Raises:
        ConfigError: ``context`` has no values.

    Source: A*-PO (arXiv:2505.20686), stage 2.
    """
    if context.value_Q is None:
        raise ConfigError(
            "these advantages need the value of every prompt, and none are given. Estimate them with dppo values "
            "CONFIG.yaml, then set prompt_values: FILE."
        )
    return (rewards.total_N - context.value_Q[rewards.group_N]).nan_to_num(0.0)


VALUE_CENTRED = AdvantageRule(name="optimal value", compute=value_advantages, from_values=True, any_size=True)


def advantage_regression(tokens: Tokens) -> Tensor:
    """(B, T) ``-A (logp - ref_logp)``: the part of the squared residual that the advantage is in.

    Raises:
        ConfigError: there are no log-probabilities of a reference.
    """
    return -tokens.advantage_B[:, None] * _log_ratio(tokens)


def squared_log_ratio(tokens: Tokens) -> Tensor:
    """(B, T) ``L l_t / 2`` with ``l_t`` the log-ratio of a token and ``L`` its sum: of a completion ``L^2 / 2``.

    Sums over tokens are meant, not means: its normaliser is ``LUSPO``.

    Raises:
        ConfigError: there are no log-probabilities of a reference.
    """
    log_ratio_BT = _log_ratio(tokens)
    return log_ratio_BT.sum(1, keepdim=True) * log_ratio_BT / 2


def _log_ratio(tokens: Tokens) -> Tensor:
    if tokens.ref_logp_BT is None:
        raise ConfigError(
            "a regression on the log-ratio needs ref_logp_BT, the reference policy's log-probabilities: pass them, "
            "with a beta above 0."
        )
    return (tokens.logp_BT - tokens.ref_logp_BT).masked_fill(tokens.mask_BT == 0, 0.0)
