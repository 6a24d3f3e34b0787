"""Advantages from the rewards of whole groups, taken before anything is pruned."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dppo.errors import RewardError, ShapeError, raise_problems

Scale = Literal["group", "batch", "none"]


def group_advantages(reward_PG: Tensor, *, scale: Scale = "group", ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Advantage of each completion: its reward minus its group's mean, over a standard deviation plus ``eps``.

    A reward of NaN means "could not be scored": it counts in no statistic and its advantage is 0. A group whose
    rewards are all equal gets exactly 0, also where the mean is rounded: rewards that differ by no more than four
    roundings of the largest of them count as equal.

    Args:
        reward_PG: (P, G) rewards, any unit, NaN where there is none; P >= 1 groups of G >= 1 completions.
        scale: what the standard deviation is over: each ``"group"``, the whole ``"batch"``, or ``"none"`` for no
            division at all. The mean is always the group's.
        ddof: 1 divides the squares by n - 1, as TRL, verl and CPPO do; 0 divides by n.
        eps: added to the standard deviation, >= 0. TRL and CPPO use 1e-4, verl 1e-6.

    Returns:
        (P, G) advantages in the floating dtype of the rewards, without NaN; one scorable reward gives 0.

    Raises:
        ConfigError: ``scale``, ``ddof`` or ``eps`` out of range.
        ShapeError: ``reward_PG`` is not two-dimensional.
        RewardError: a reward is infinite.

    Source: DeepSeekMath (arXiv:2402.03300), section 4.1.2; without the division Dr. GRPO (arXiv:2503.20783); with
        the standard deviation of the batch Lite PPO (arXiv:2508.08221).
    """
    _check_settings(scale, ddof, eps)
    reward_PG = _checked_rewards(reward_PG)
    centred_PG = reward_PG - reward_PG.nanmean(1, keepdim=True)
    advantage_PG = centred_PG
    if scale == "group":
        advantage_PG = centred_PG / (_deviation(reward_PG, ddof) + eps)
    elif scale == "batch":
        advantage_PG = centred_PG / (_deviation(reward_PG.reshape(1, -1), ddof) + eps)
    return advantage_PG.masked_fill(reward_PG.isnan() | _is_flat(reward_PG), 0.0)


def zero_signal(advantage_PG: Tensor) -> Tensor:
    """True for each group in which every advantage is 0: without a KL or entropy term it has no gradient.

    Args:
        advantage_PG: (P, G) advantages.

    Returns:
        (P,) bool.
    """
    return (advantage_PG == 0).all(1)


def unchanged(advantage: Tensor) -> Tensor:
    """The advantages as they are.

    Args:
        advantage: of any shape.
    """
    return advantage


def powered(advantage: Tensor, *, power: float = 0.0) -> Tensor:
    """``A * abs(A)^power``, of the shape given: above 0 it stresses rare outcomes, whose advantages are large.

    Advantages of a group then no longer sum to 0, so the objective is another one than that of the rewards: with m of
    G right, powers above 0 pull towards what is rare in a group, right or wrong.

    Args:
        advantage: of any shape.
        power: finite and > -1; 0 changes nothing.

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
    compute: Callable[[Tensor], Tensor]
    """Rewards (P, G) to advantages (P, G)."""
    prompt_exact: bool = True
    """True where a group's advantages do not depend on which other prompts were rolled out."""
    reason: str = ""
    """Why it is not exact under prompt pruning, one sentence; empty where it is."""
    transform: Callable[[Tensor], Tensor] = unchanged
    """What every advantage is put through last, element by element; 0 stays 0."""

    def __call__(self, reward_PG: Tensor) -> Tensor:
        """Advantages (P, G) of the rewards (P, G)."""
        return self.transform(self.compute(reward_PG))


def emphasised(rule: AdvantageRule, power: float) -> AdvantageRule:
    """The rule with each advantage replaced by ``A * abs(A)^power``. Pruning this objective is as exact as its own.

    Args:
        rule: gives the advantages.
        power: finite and > -1; 0 gives the rule itself back.

    Raises:
        ConfigError: a power out of range.
    """
    if power == 0:
        return rule
    transform = partial(powered, power=power)
    transform(torch.zeros(1))
    return replace(rule, name=f"{rule.name}, A * abs(A)^{power:g}", transform=transform)


GROUP_SCALED = AdvantageRule(name="group", compute=partial(group_advantages, scale="group"))
CENTRED = AdvantageRule(name="none", compute=partial(group_advantages, scale="none"))
BATCH_SCALED = AdvantageRule(
    name="batch",
    compute=partial(group_advantages, scale="batch"),
    prompt_exact=False,
    reason="the standard deviation of the batch is taken over the rolled-out prompts only, so it moves with the draw",
)

ADVANTAGE_RULES = {rule.name: rule for rule in (GROUP_SCALED, BATCH_SCALED, CENTRED)}
"""By the name TRL's ``scale_rewards`` gives them."""


Statistics = Callable[[AdvantageRule, Tensor, Tensor, Tensor], Tensor]
"""``statistics(rule, reward_PG, advantage_PG, keep_PG) -> advantage_PG``: the advantages that are trained with.

``advantage_PG`` (P, G) are those of the whole groups, ``keep_PG`` (P, G) bool says which completions are kept."""


def whole_groups(rule: AdvantageRule, reward_PG: Tensor, advantage_PG: Tensor, keep_PG: Tensor) -> Tensor:
    """The advantages of the whole groups, (P, G): what was dropped still counts in means and deviations.

    Args:
        rule: not used.
        reward_PG: not used.
        advantage_PG: (P, G) from whole groups.
        keep_PG: not used.
    """
    return advantage_PG


def kept_rows(rule: AdvantageRule, reward_PG: Tensor, advantage_PG: Tensor, keep_PG: Tensor) -> Tensor:
    """Advantages (P, G) from the rewards of kept completions alone, 0 for the others. Biased.

    Args:
        rule: turns rewards into advantages.
        reward_PG: (P, G) rewards.
        advantage_PG: (P, G) not used but for its dtype.
        keep_PG: (P, G) bool.

    Source: PODS, arXiv:2504.13818, which takes mean and standard deviation over the down-sampled group.
    """
    return rule(reward_PG.to(advantage_PG).masked_fill(~keep_PG, torch.nan))


STATISTICS: dict[str, Statistics] = {"whole_groups": whole_groups, "kept_rows": kept_rows}

BIASED_STATISTICS: dict[Statistics, str] = {
    kept_rows: "means and deviations of advantages are those of the rows kept (kept_rows), which is another baseline",
}
"""Why advantages depend on the draw. Those that are not listed do not."""


def _deviation(reward_RG: Tensor, ddof: int) -> Tensor:
    """Standard deviation of each row, (R, 1), without NaN entries; 0 where no more than ``ddof`` entries are left."""
    count_R1 = (~reward_RG.isnan()).sum(1, keepdim=True)
    square_R1 = (reward_RG - reward_RG.nanmean(1, keepdim=True)).square().nansum(1, keepdim=True)
    return (square_R1 / (count_R1 - ddof).clamp(min=1)).sqrt()


def _is_flat(reward_PG: Tensor) -> Tensor:
    """True, (P, 1), for groups whose rewards are equal up to rounding."""
    missing_PG = reward_PG.isnan()
    highest_P1 = reward_PG.masked_fill(missing_PG, -torch.inf).amax(1, keepdim=True)
    lowest_P1 = reward_PG.masked_fill(missing_PG, torch.inf).amin(1, keepdim=True)
    largest_P1 = torch.maximum(highest_P1.abs(), lowest_P1.abs())
    return highest_P1 - lowest_P1 <= 4 * torch.finfo(reward_PG.dtype).eps * largest_P1


def _checked_rewards(reward_PG: Tensor) -> Tensor:
    if reward_PG.dim() != 2 or reward_PG.numel() == 0:
        raise ShapeError(
            f"reward_PG has shape {tuple(reward_PG.shape)}, expected (prompts, completions per prompt), both >= 1: "
            "write reward.view(-1, num_generations)."
        )
    if reward_PG.isinf().any():
        raise RewardError(
            f"{int(reward_PG.isinf().sum())} of {reward_PG.numel()} rewards are infinite. Rewards must be finite, or "
            "NaN for a completion that cannot be scored: return float('nan')."
        )
    return reward_PG if reward_PG.is_floating_point() else reward_PG.to(torch.get_default_dtype())


def _check_settings(scale: str, ddof: int, eps: float) -> None:
    problems = []
    if scale not in ("group", "batch", "none"):
        problems.append(f"scale={scale!r} is not one of 'group', 'batch', 'none'. Write scale='group'.")
    if ddof not in (0, 1):
        problems.append(f"ddof={ddof!r} must be 0 or 1. Write ddof=1 for what TRL and verl compute.")
    if not eps >= 0:
        problems.append(f"eps={eps!r} must be >= 0. Write eps=1e-4.")
    raise_problems("group_advantages", problems)
