"""Advantages from the rewards of whole groups, taken before anything is pruned."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.errors import ConfigError, ShapeError, raise_problems, require
from dppo.groups import each_group
from dppo.types import Rewards

Scale = Literal["group", "batch", "none"]


def group_advantages(
    rewards: Rewards,
    context: StepContext = NOTHING_KNOWN,
    *,
    scale: Scale = "group",
    ddof: int = 1,
    eps: float = 1e-4,
) -> Tensor:
    """Advantage of each completion: its total reward minus its group's mean, over a standard deviation plus ``eps``.

    A completion that no function could score counts in no statistic and its advantage is 0. A group whose totals are
    all equal gets exactly 0, also where the mean is rounded.

    Args:
        rewards: of whole groups, of any sizes.
        context: not read.
        scale: what the standard deviation is over: each ``"group"``, the whole ``"batch"``, or ``"none"`` for no
            division at all. The mean is always the group's.
        ddof: 1 divides the squares by n - 1, as TRL, verl and CPPO do; 0 divides by n.
        eps: added to the standard deviation, >= 0. TRL and CPPO use 1e-4, verl 1e-6.

    Returns:
        (N,) float64 advantages without NaN; a group with one scorable completion gives 0.

    Raises:
        ConfigError: ``scale``, ``ddof`` or ``eps`` out of range.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2; without the division Dr. GRPO (arXiv:2503.20783); with
        the standard deviation of the batch Lite PPO (arXiv:2508.08221).
    """
    ranges = {
        f"scale={scale!r} is not one of 'group', 'batch', 'none'. Write scale='group'.": scale in get_args(Scale),
        f"ddof={ddof!r} must be 0 or 1. Write ddof=1 for what TRL and verl compute.": ddof in (0, 1),
        f"eps={eps!r} must be >= 0. Write eps=1e-4.": eps >= 0,
    }
    require("group_advantages", ranges)
    total_N, group_N = rewards.total_N, rewards.group_N
    advantage_N = total_N - rewards.mean_Q[group_N]
    if scale == "group":
        advantage_N = advantage_N / (each_group(partial(deviation, ddof=ddof), group_N, total_N)[group_N] + eps)
    elif scale == "batch":
        advantage_N = advantage_N / (deviation(total_N[None], ddof=ddof) + eps)
    return advantage_N.masked_fill(total_N.isnan() | rewards.zero_variance_Q[group_N], 0.0)


def deviation(value_QG: Tensor, *, ddof: int = 1) -> Tensor:
    """(Q,) standard deviation of each line without its NaN entries; 0 where no more than ``ddof`` entries are left."""
    count_Q = (~value_QG.isnan()).sum(1)
    square_Q = (value_QG - value_QG.nanmean(1, keepdim=True)).square().nansum(1)
    return (square_Q / (count_Q - ddof).clamp(min=1)).sqrt()


def powered(advantage: Tensor, *, power: float) -> Tensor:
    """``A * abs(A)^power``, of the shape given: above 0 it stresses rare outcomes, whose advantages are large.

    Advantages of a group then no longer sum to 0, so the objective is another one than that of the rewards: with m of
    G right, powers above 0 pull towards what is rare in a group, right or wrong. Powers are finite and > -1; 0 changes
    nothing.

    Raises:
        ConfigError: a power out of range.
    """
    if not (math.isfinite(power) and power > -1):
        raise_problems("powered", [f"power={power!r} must be finite and > -1. Write power=0.5."])
    return advantage.sign() * advantage.abs() ** (1 + power)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageRule:
    """A way to turn rewards into advantages, together with what it means for prompt pruning. Call it as a function."""

    name: str
    compute: Callable[[Rewards, StepContext], Tensor]
    """Rewards of whole groups, and what was known of them before, to (N,) float64 advantages, without NaN."""
    prompt_exact: bool = True
    """True where a group's advantages do not depend on which other prompts were rolled out."""
    reason: str = ""
    """Why it is not exact under prompt pruning, one sentence; empty where it is."""
    from_history: bool = False
    """Whether a group of one completion has an advantage, since history stands in for its siblings."""
    from_values: bool = False
    """Whether it needs ``StepContext.value_Q``, which stand in for the siblings of a completion too."""
    any_size: bool = False
    """Whether the expected gradient is the same for groups of every size."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What a trainer of TRL is told to compute the same: its fields by name. No two rules have the same."""

    @property
    def of_one(self) -> bool:
        """Whether a group of one completion has an advantage."""
        return self.from_history or self.from_values

    def __call__(self, rewards: Rewards, context: StepContext) -> Tensor:
        """Advantages (N,) of the rewards of whole groups; ``context`` is ``NOTHING_KNOWN`` where nothing was.

        Raises:
            ShapeError: ``compute`` gave something else than one number per completion.
            ConfigError: it gave NaN, or an infinite advantage.
        """
        advantage_N = self.compute(rewards, context)
        if not isinstance(advantage_N, Tensor) or advantage_N.shape != (len(rewards),):
            shown = getattr(advantage_N, "shape", advantage_N)
            raise ShapeError(f"advantages {self.name!r} are {shown!r:.80}, expected a tensor ({len(rewards)},).")
        if wrong := int((~advantage_N.isfinite()).sum()):
            advice = "Give those 0 that have no reward or no group: advantage_N.nan_to_num(0.0)."
            raise ConfigError(f"advantages {self.name!r} are not finite for {wrong} of {len(rewards)}. {advice}")
        return advantage_N


def emphasised(rule: AdvantageRule, power: float) -> AdvantageRule:
    """The rule with each advantage ``powered``; a power of 0 gives the rule itself back.

    Pruning this objective is as exact as its own.

    Raises:
        ConfigError: a power out of range.
    """
    if power == 0:
        return rule
    powered(torch.zeros(1), power=power)

    def compute(rewards: Rewards, context: StepContext) -> Tensor:
        return powered(rule(rewards, context), power=power)

    return replace(rule, name=f"{rule.name}, A * abs(A)^{power:g}", compute=compute, any_size=False)


def _summed(scale: str) -> Mapping[str, str]:
    return {"scale_rewards": scale, "multi_objective_aggregation": "sum_then_normalize"}


GROUP_SCALED = AdvantageRule(name="group", compute=partial(group_advantages, scale="group"), settings=_summed("group"))
CENTRED = AdvantageRule(name="none", compute=partial(group_advantages, scale="none"), settings=_summed("none"))
BATCH_SCALED = AdvantageRule(
    name="batch",
    compute=partial(group_advantages, scale="batch"),
    prompt_exact=False,
    reason="the standard deviation of the batch is taken over the rolled-out prompts only, so it moves with the draw",
    settings=_summed("batch"),
)

ADVANTAGE_RULES = {rule.name: rule for rule in (GROUP_SCALED, BATCH_SCALED, CENTRED)}
"""Those that belong to no single paper, by the name TRL's ``scale_rewards`` gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Which completions the advantages come from that kept completions are trained with."""

    compute: Callable[[AdvantageRule, Rewards, StepContext, Tensor], Tensor] | None = None
    """``compute(rule, rewards, context, keep_N) -> advantage_N`` to train with, where ``keep_N`` (N,) bool is what any
    draw of the rollout keeps; None for those of whole groups."""
    bias: str = ""
    """Why advantages depend on the draw, one clause; empty where they do not."""


WHOLE_GROUPS = Statistics()
"""What was dropped still counts in means and deviations."""
