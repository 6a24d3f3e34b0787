"""GDPO, arXiv:2601.05242: each reward function is normalised within groups by itself, then their sum in the batch."""

import torch
from torch import Tensor

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.groups import each_group, equal_within_groups
from dppo.methods.method import Objective
from dppo.objective import AdvantageRule, deviation
from dppo.objective.advantages import EPS
from dppo.types import Rewards


def decoupled_advantages(rewards: Rewards, context: StepContext = NOTHING_KNOWN) -> Tensor:
    """(N,) float64 sum over functions of weight times the reward normalised within its group, over the batch deviation.

    It is 0 for completions that no function scored, and in groups of zero variance under every function. The mean of
    the batch, which the paper subtracts, is 0. ``EPS`` is added to every standard deviation, as in TRL.
    """
    group_N, precision = rewards.group_N, torch.finfo(rewards.reward_NF.dtype).eps
    weight_F = torch.ones(rewards.reward_NF.shape[1]) if rewards.weight_F is None else rewards.weight_F
    total_N = torch.zeros(len(rewards), dtype=torch.float64)
    for reward_N, weight in zip(rewards.reward_NF.double().unbind(1), weight_F.tolist(), strict=True):
        mean_Q = each_group(lambda reward_QG: reward_QG.nanmean(1), group_N, reward_N)
        scaled_N = (reward_N - mean_Q[group_N]) / (each_group(deviation, group_N, reward_N)[group_N] + EPS)
        zero_variance_Q = equal_within_groups(group_N, reward_N, eps=precision)
        total_N += weight * scaled_N.masked_fill(reward_N.isnan() | zero_variance_Q[group_N], 0.0)
    unscored_N = rewards.total_N.isnan()
    spread = deviation(total_N.masked_fill(unscored_N, torch.nan)[None])
    return (total_N / (spread + EPS)).masked_fill(unscored_N, 0.0)


DECOUPLED = AdvantageRule(
    name="decoupled",
    compute=decoupled_advantages,
    prompt_exact=False,
    reason="the sum is divided by the standard deviation of the batch, which is taken over the rolled-out prompts "
    "only, so it moves with the draw",
    settings={"multi_objective_aggregation": "normalize_then_sum"},
)

GDPO = Objective(
    name="gdpo",
    paper="arXiv:2601.05242, GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL "
    "Optimization",
    advantages=DECOUPLED,
    deviations=(
        "deviations have ddof 1 and eps 1e-4, as in TRL",
        "rewards are not conditioned on each other, which belongs to the reward functions",
    ),
)
