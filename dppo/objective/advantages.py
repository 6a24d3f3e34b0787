"""Advantages from the rewards of whole groups, taken before anything is pruned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.errors import ConfigError, ShapeError
from dppo.groups import ROUNDINGS, each_group, group_sums
from dppo.typed import check_range
from dppo.types import Rewards

Scale = Literal["group", "batch", "none"]
EPS = 1e-4
"""Added to a standard deviation, as in TRL and CPPO; verl adds 1e-6."""
DEVIATION_FLOOR = 0.1
"""Added to a standard deviation from history, which is 0 for a prompt that was always solved."""


def group_advantages(rewards: Rewards, context: StepContext = NOTHING_KNOWN, *, scale: Scale = "group") -> Tensor:
    """(N,) float64 advantages: total reward minus the group's mean, over a standard deviation plus ``EPS``.

    A completion without a reward counts in no statistic; its advantage is 0. Zero-variance groups and groups with one
    reward have advantages of exactly 0. ``scale`` is the standard deviation of each ``"group"`` or of the whole
    ``"batch"``; ``"none"`` does not divide. ``context`` is not read.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2; undivided, Dr. GRPO (arXiv:2503.20783); over the batch, Lite
        PPO (arXiv:2508.08221).
    """
    check_range("group_advantages", "scale", scale, get_args(Scale), "scale='group'")
    total_N, group_N = rewards.total_N, rewards.group_N
    advantage_N = total_N - rewards.mean_Q[group_N]
    if scale == "group":
        advantage_N = advantage_N / (each_group(deviation, group_N, total_N)[group_N] + EPS)
    elif scale == "batch":
        advantage_N = advantage_N / (deviation(total_N[None]) + EPS)
    return advantage_N.masked_fill(total_N.isnan() | rewards.zero_variance_Q[group_N], 0.0)


def deviation(value_QG: Tensor) -> Tensor:
    """(Q,) standard deviation (ddof 1) of each line without its NaN entries; 0 with at most one entry."""
    count_Q = (~value_QG.isnan()).sum(1)
    square_Q = (value_QG - value_QG.nanmean(1, keepdim=True)).square().nansum(1)
    return (square_Q / (count_Q - 1).clamp(min=1)).sqrt()


def powered(advantage: Tensor, *, power: float) -> Tensor:
    """``A * abs(A)^power``, of the shape given, ``power`` > -1: above 0 it stresses rare outcomes, right or wrong.

    Advantages of a group then no longer sum to 0, so the objective is not that of the rewards.
    """
    check_range("powered", "power", power, "(-1, inf)", "power=0.5")
    return advantage.sign() * advantage.abs() ** (1 + power)


def history_advantages(rewards: Rewards, context: StepContext) -> Tensor:
    """(N,) float64 rewards minus a mix of the siblings' mean and the mean that history expects of the prompt.

    The baseline of completion i of a group of n is ``w * mean_{j != i} R_j + (1 - w) * m``. History gives ``m`` and its
    variance ``v / strength``, with ``v`` the variance of one reward, so ``w = (n - 1) / (n - 1 + strength)``. The
    baseline does not depend on completion i, and ``m``, ``strength`` and n are fixed before the rollout. So the
    expected gradient is that of the mean reward for every n, 1 included.

    Each function has its own baseline; advantages are summed with the functions' weights, without missing rewards.
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


def history_scaled_advantages(rewards: Rewards, context: StepContext) -> Tensor:
    """(N,) float64 ``history_advantages`` over ``DEVIATION_FLOOR`` plus the deviation that history expects of a prompt.

    It is fixed before the rollout, while a group's own deviation depends on its size. Functions are taken as
    independent: their weighted variances are added. Without history it does not divide.
    """
    advantage_N = history_advantages(rewards, context)
    if context.expected is None:
        return advantage_N
    spread_Q = context.expected.total_variance_Q(rewards.weight_F).sqrt()
    return advantage_N / (spread_Q[rewards.group_N] + DEVIATION_FLOOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageRule:
    """Function from rewards to advantages, with its properties for pruning. Call it as a function."""

    name: str
    compute: Callable[[Rewards, StepContext], Tensor]
    """From rewards of whole groups and their context to (N,) float64 advantages, without NaN."""
    prompt_exact: bool = True
    """True if a group's advantages do not depend on which other prompts were rolled out."""
    reason: str = ""
    """Why it is not exact under prompt pruning, one sentence; empty if it is."""
    from_history: bool = False
    """True if history is a baseline, so a group of one completion has an advantage."""
    from_values: bool = False
    """True if ``StepContext.value_Q`` is the baseline, so a group of one completion has an advantage."""
    any_size: bool = False
    """True if the expected gradient is the same for groups of every size."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Fields of TRL's trainer with which it computes the same, by name. No two rules share them."""

    @property
    def of_one(self) -> bool:
        """True if a group of one completion has an advantage."""
        return self.from_history or self.from_values

    def __call__(self, rewards: Rewards, context: StepContext) -> Tensor:
        """(N,) advantages of whole groups; an error if ``compute`` returns another shape, NaN or an infinite number."""
        advantage_N = self.compute(rewards, context)
        if not isinstance(advantage_N, Tensor) or advantage_N.shape != (len(rewards),):
            shown = getattr(advantage_N, "shape", advantage_N)
            raise ShapeError(f"advantages {self.name!r} are {shown!r:.80}, expected a tensor ({len(rewards)},).")
        if wrong := int((~advantage_N.isfinite()).sum()):
            advice = "Return 0 for those without a reward or a group: advantage_N.nan_to_num(0.0)."
            raise ConfigError(f"advantages {self.name!r} are not finite for {wrong} of {len(rewards)}. {advice}")
        return advantage_N


def emphasised(rule: AdvantageRule, power: float) -> AdvantageRule:
    """The rule with each advantage ``powered``, as exact under pruning; a power of 0 returns the rule itself."""
    if power == 0:
        return rule
    powered(torch.zeros(1), power=power)  # refuses a bad power now, not in the first step

    def compute(rewards: Rewards, context: StepContext) -> Tensor:
        return powered(rule(rewards, context), power=power)

    return replace(rule, name=f"{rule.name}, A * abs(A)^{power:g}", compute=compute, any_size=False)


def _scaled(scale: Scale) -> AdvantageRule:
    settings = {"scale_rewards": scale, "multi_objective_aggregation": "sum_then_normalize"}
    return AdvantageRule(name=scale, compute=partial(group_advantages, scale=scale), settings=settings)


GROUP_SCALED, CENTRED = _scaled("group"), _scaled("none")
BATCH_SCALED = replace(
    _scaled("batch"),
    prompt_exact=False,
    reason="the standard deviation of the batch is taken over the rolled-out prompts only, so it moves with the draw",
)
HISTORY_CENTRED = AdvantageRule(name="history baseline", compute=history_advantages, from_history=True, any_size=True)
HISTORY_SCALED = replace(HISTORY_CENTRED, name="history baseline and deviation", compute=history_scaled_advantages)

ADVANTAGE_RULES = {rule.name: rule for rule in (GROUP_SCALED, BATCH_SCALED, CENTRED)}
"""Rules that belong to no single paper, by TRL's ``scale_rewards``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Completions whose rewards give the advantages that kept completions are trained with."""

    compute: Callable[[AdvantageRule, Rewards, StepContext, Tensor], Tensor]
    """``compute(rule, rewards, context, keep_N) -> advantage_N``; ``keep_N`` (N,) bool marks completions that any draw
    of the rollout keeps."""
    bias: str
    """Why advantages depend on the draw, one clause."""
