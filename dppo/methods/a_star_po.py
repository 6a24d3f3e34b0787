"""A*-PO, arXiv:2505.20686: regression of a policy's log-ratio to a reference on an advantage known before training.

The loss of a completion with log-ratio ``L = sum_t log pi_t - log ref_t`` and advantage ``A = r - V*`` is ``(beta L -
A)^2 = 2 beta (beta L^2 / 2 - A L) + A^2``: a policy term (``advantage_regression``) and a KL term
(``squared_log_ratio``). ``loss + beta * kl`` has its gradient over ``2 beta``, so beta means the same as in other
methods.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import ConfigError, raise_problems
from dppo.methods.method import Objective
from dppo.objective import LUSPO, AdvantageRule, Tokens
from dppo.typed import check_range
from dppo.types import Completions, Rewards


def optimal_value(reward_PG: Tensor, *, beta: float) -> Tensor:
    """(P,) float64 ``beta log mean_i exp(r_i / beta)``: the best value of each prompt within reach of a reference.

    ``reward_PG`` (P, G) are finite rewards of completions that the reference sampled. ``beta`` > 0 has their unit; in
    the paper, stage 1, it is 0.5. The value lies between the mean (large beta) and the largest reward (small beta).
    """
    check_range("optimal_value", "beta", beta, "(0, inf)", "beta=0.5")
    if reward_PG.dim() != 2 or not reward_PG.shape[1] or not reward_PG.isfinite().all():
        raise_problems("optimal_value", ["reward_PG must be finite numbers (prompts, samples). Try torch.ones(4, 8)."])
    reward_PG = reward_PG.double()
    return beta * (torch.logsumexp(reward_PG / beta, 1) - math.log(reward_PG.shape[1]))


def value_advantages(rewards: Rewards, context: StepContext) -> Tensor:
    """(N,) float64 total reward minus the value of the prompt, stage 2 of A*-PO; 0 without any reward."""
    if context.value_Q is None:
        advice = "Set prompt_values: FILE, and write it first: python examples/prompt_values.py CONFIG.yaml"
        raise ConfigError(f"these advantages need the value of every prompt, and none are given. {advice}")
    return (rewards.total_N - context.value_Q[rewards.group_N]).nan_to_num(0.0)


def advantage_regression(tokens: Tokens) -> Tensor:
    """(B, T) ``-A (logp - ref_logp)``: the part of the squared residual that contains the advantage."""
    return -tokens.advantage_B[:, None] * _log_ratio(tokens)


def squared_log_ratio(tokens: Tokens) -> Tensor:
    """(B, T) ``L l_t / 2`` with ``l_t`` the log-ratio of a token and ``L`` its sum. ``LUSPO`` sums to ``L^2 / 2``."""
    log_ratio_BT = _log_ratio(tokens)
    return log_ratio_BT.sum(1, keepdim=True) * log_ratio_BT / 2


def _log_ratio(tokens: Tokens) -> Tensor:
    if tokens.ref_logp_BT is None:
        raise ConfigError("a regression on the log-ratio needs ref_logp_BT of the reference: pass it, with beta > 0.")
    return (tokens.logp_BT - tokens.ref_logp_BT).masked_fill(tokens.mask_BT == 0, 0.0)


def residual_bound(completions: Completions, *, drift: float = 0.1) -> Tensor:
    """(N,) float64 ``(|A| + beta * drift * tokens) * bound``: a bound on the gradient norm of a squared residual.

    ``L`` is not known before the forward pass that pruning saves. It is at most ``drift * tokens`` if tokens have moved
    from the reference by ``drift`` nats on average; a wrong ``drift`` costs variance, never bias. The gradient of ``L``
    goes with ``sqrt(sum_t (1 - p_t)^2)``, or with ``sqrt(tokens)`` if the sampler recorded no probabilities.
    """
    tokens_N = completions.tokens_N.double()
    bound_N = tokens_N.sqrt() if completions.uncertainty_N is None else completions.uncertainty_N.double()
    return (completions.advantage_N.double().abs() + completions.beta * drift * tokens_N) * bound_N


A_STAR_PO = Objective(
    name="a_star_po",
    paper="arXiv:2505.20686, Accelerating RL for LLM Reasoning with Optimal Advantage Regression",
    advantages=AdvantageRule(name="optimal value", compute=value_advantages, from_values=True, any_size=True),
    token_loss=advantage_regression,
    kl=squared_log_ratio,
    beta=1e-3,  # the paper's beta2
    normaliser=replace(LUSPO, name="sequence sums"),  # TRL's ``luspo`` is a loss as well
    needs_reference=True,
    score=residual_bound,
    deviations=(
        "the squared loss is divided by 2 beta and its constant left out: its gradient in the unit of rewards",
        "prompts whose reference samples all failed stay, with a value of 0, where the paper may leave them out",
        "groups may have any size; the paper has one completion a prompt: num_generations=1",
    ),
)
