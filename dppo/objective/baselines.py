"""Advantages against a baseline from history and from the other completions of a group, for groups of any size."""

import math

import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import require
from dppo.groups import ROUNDINGS, group_sums
from dppo.objective.advantages import AdvantageRule
from dppo.types import Rewards

DEVIATION_FLOOR = 0.1
"""Added to a standard deviation from history, which is 0 for a prompt that was always solved."""


def history_advantages(rewards: Rewards, context: StepContext) -> Tensor:
    """(N,) float64 rewards minus a mix of the siblings' mean and the mean that history expects of the prompt.

    The baseline of completion i of a group of n is ``w * mean_{j != i} R_j + (1 - w) * m``. History gives ``m`` and its
    variance ``v / strength``, with ``v`` the variance of one reward. The precisions give
    ``w = (n - 1) / (n - 1 + strength)``. The baseline does not depend on completion i, and ``m``, ``strength`` and n
    are fixed before the rollout. So the expected gradient is that of the mean reward for every n, 1 included.

    Each function has its own baseline; the advantages are summed with the functions' weights, without missing rewards.
    Without history the baseline is the siblings' mean, and a group of one has an advantage of 0.

    Source: leave-one-out, Kool et al. (2019), Ahmadian et al. (arXiv:2402.14740); a tracker per prompt, SPO
        (arXiv:2509.13232); the mix by shrinkage, arXiv:2511.03710.
    """
    reward_NF, group_N = rewards.reward_NF.double(), rewards.group_N
    known_NF, filled_NF = (~reward_NF.isnan()).double(), reward_NF.nan_to_num(0.0)
    others_NF = group_sums(known_NF, group_N)[group_N] - known_NF
    mean_NF = (group_sums(filled_NF, group_N)[group_N] - filled_NF) / others_NF.clamp_min(1)
    baseline_NF = torch.where(others_NF > 0, mean_NF, filled_NF)
    if context.expected is not None:
        expected = context.expected.take(group_N)
        share_NF = others_NF / (others_NF + expected.strength_QF).clamp_min(1e-12)
        mixed_NF = share_NF * mean_NF + (1 - share_NF) * expected.mean_QF
        baseline_NF = torch.where(expected.strength_QF > 0, mixed_NF, baseline_NF)
    advantage_NF = (filled_NF - baseline_NF) * known_NF
    # The mean of equal numbers may be off by a rounding, which must not become a gradient.
    rounding = ROUNDINGS * torch.finfo(rewards.reward_NF.dtype).eps
    advantage_NF = advantage_NF.masked_fill(advantage_NF.abs() <= rounding * filled_NF.abs(), 0.0)
    return advantage_NF.sum(1) if rewards.weight_F is None else advantage_NF @ rewards.weight_F.double()


def history_scaled_advantages(rewards: Rewards, context: StepContext, *, eps: float = DEVIATION_FLOOR) -> Tensor:
    """(N,) float64 ``history_advantages`` over a standard deviation that history expects of the prompt, plus ``eps``.

    It re-weights prompts by numbers fixed before the rollout, while a group's own deviation depends on its size.
    Functions are taken as independent: their weighted variances are added. Without history it does not divide.

    Raises:
        ConfigError: ``eps`` is not > 0.
    """
    positive = f"eps={eps!r} must be > 0. Write eps={DEVIATION_FLOOR}."
    require("history_scaled_advantages", {positive: 0 < eps < math.inf})
    advantage_N = history_advantages(rewards, context)
    if context.expected is None:
        return advantage_N
    return advantage_N / (context.expected.total_variance_Q(rewards.weight_F).sqrt()[rewards.group_N] + eps)


HISTORY_CENTRED = AdvantageRule(name="history baseline", compute=history_advantages, from_history=True, any_size=True)
HISTORY_SCALED = AdvantageRule(
    name="history baseline and deviation", compute=history_scaled_advantages, from_history=True, any_size=True
)
