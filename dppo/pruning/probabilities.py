"""Rules: from scores to inclusion probabilities. Nothing is drawn here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, ShapeError
from dppo.typed import check_fields

ROUNDING = 1e-9
"""Relative slack for budgets and floors that are equal in decimal and not in binary, such as 0.1 and 1 - 0.9."""


def inclusion_probabilities(
    size_N: Tensor, budget: float, *, floor: float | Tensor, cost_N: Tensor | None = None
) -> Tensor:
    """Probabilities proportional to ``size / sqrt(cost)`` within [floor, 1] that cost ``budget`` on average.

    Solves ``sum_i cost_i * clip(c * size_i / sqrt(cost_i), floor, 1) == budget`` for ``c``: of all probabilities of
    that cost and floor, those with the smallest variance, ``sum_i size_i^2 / prob_i``. Units of size 0 rise above the
    floor last. Sizes [1, 1, 4] with a budget of 1.5 units and a small floor give [.25, .25, 1], float64.

    Args:
        size_N: (N,) how much each matters, in any scale, finite and >= 0; the norm of its gradient would be ideal.
        budget: mean cost of the kept units, within [floor * total cost, total cost]; in units if ``cost_N`` is None.
        floor: lowest probability of a unit, in (0, 1]; no weight exceeds ``1 / floor``. Or (N,), that of each.
        cost_N: (N,) cost of keeping each, in any scale, finite and > 0; None means 1 each.

    Source: Neyman (1934), with costs as in Cochran, Sampling Techniques (1977), on optimum allocation.
    """
    size, cost = finite("size", size_N), _costs(size_N, cost_N)
    if isinstance(floor, Tensor) and floor.dim() and len(floor) != len(size):
        raise ShapeError(f"floor has {len(floor)} entries and size has {len(size)}: they must be equal")
    prob = np.full(len(size), floor.detach().double().numpy() if isinstance(floor, Tensor) else floor, np.float64)
    if len(outside := prob[~((prob > 0) & (prob <= 1))]):
        raise DesignError(f"floor={outside[0]:g} must be in (0, 1]. Try floor=0.1.")
    total, least = float(cost.sum()), float((prob * cost).sum())
    if not least - ROUNDING * total <= budget <= (1 + ROUNDING) * total:
        mean = least / total
        why = f"cannot spend {budget:g} of {total:g} with floor={mean:g}: probabilities are from the floor to 1"
        raise DesignError(f"{why}. Use a budget in [{least:g}, {total:g}] or a lower floor.")
    budget = min(max(budget, least), total)
    sized = size > 0
    spared = float((prob * cost)[~sized].sum())
    if budget - spared < cost[sized].sum():
        units, spend = sized, budget - spared
    else:
        prob[sized] = 1.0
        units, spend = ~sized, budget - cost[sized].sum()
        size = np.ones(len(size))
    if units.any():
        prob[units] = _spend(np.log(size[units]) - 0.5 * np.log(cost[units]), cost[units], float(spend), prob[units])
    return torch.from_numpy(prob)


def _spend(log_slope: np.ndarray, cost: np.ndarray, budget: float, floor: np.ndarray) -> np.ndarray:
    """``clip(exp(log_c + log_slope), floor, 1)`` that costs ``budget``."""
    # The cost is linear in c between the values at which some unit leaves the floor or reaches 1: bisection among
    # these finds the piece, and the units inside are scaled to what is left for them.
    leaves_floor, reaches_one = np.log(floor) - log_slope, -log_slope
    bend = np.sort(np.concatenate([leaves_floor, reaches_one]))

    def at(log_c: float) -> np.ndarray:
        return np.maximum(np.exp(np.minimum(log_c + log_slope, 0.0)), floor)

    low, high = 0, len(bend) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(bend[middle]) @ cost < budget else (low, middle)
    prob = at(bend[high])
    inside = (leaves_floor <= bend[low]) & (reaches_one >= bend[high])
    if inside.any():
        excess = (prob * cost).sum() - budget
        prob[inside] *= 1.0 - excess / (prob[inside] * cost[inside]).sum()
    return np.clip(prob, floor, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a rule: the share to drop, the floors and the costs."""

    rate: float
    """Share of the cost to drop on average, in [0, 1)."""
    floor: float = 0.0
    """Lowest probability of a unit, in [0, 1 - rate]."""
    least: float | None = None
    """Lowest probability of a unit of score 0, in (0, floor]; None for ``floor``, which is then that of every unit."""
    cost_N: Tensor | None = None
    """(N,) cost of keeping a unit, > 0; None means 1 each, so that ``rate`` is a share of units."""

    def __post_init__(self) -> None:
        check_fields(self, "Budget(rate=0.5, floor=0.1)", rate="[0, 1)", floor="[0, 1]", least=f"(0, {self.floor:g}]")
        if self.floor > 1 - self.rate + ROUNDING:
            kept = f"floor={self.floor:g} is above the share that rate={self.rate:g} keeps, {1 - self.rate:g}"
            raise DesignError(f"{kept}. Use floor={(1 - self.rate) / 2:g}, or a lower rate.")

    def floors(self, score: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """(N,) float64 lowest probabilities: a line from ``least`` at score 0 through ``floor`` at the mean; <= 1."""
        with np.errstate(over="ignore"):  # a mean beyond what can be written leaves ``least`` to all
            mean = float(cost @ score) / float(cost.sum() or 1.0)
        if self.least is None or not mean > 0:
            return np.full(len(score), self.floor if self.least is None else self.least)
        return np.minimum(self.least + (self.floor - self.least) * (score / mean), 1.0)


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Properties that a function declares by ``@stating``; a function without the decorator has these defaults."""

    spends_budget: bool = False
    """True for a rule that keeps exactly ``1 - rate`` of the cost on average, and reads costs and floors."""
    needs_log_probs: bool = False
    """True for a score that needs the sampler's log-probabilities."""
    of_sums: bool = False
    """True for a score that guesses the gradient norm of a sum over tokens; it divides by them for a loss of means."""
    by_moments: bool = False
    """True for a rule for tokens that reads the floor, and moments, which need the sampler's log-probabilities."""
    chooses_rate: bool = False
    """True for a rule for tokens whose rate ``auto`` can choose."""
    largest_rate: float = 1.0
    """Largest share of the tokens that a rule for tokens can leave out."""


NOTHING_STATED = Stated()


def stating(**properties: Any) -> Callable[[Function], Function]:
    """Decorator that gives a function the ``Stated`` properties."""

    def with_properties(function: Function) -> Function:
        vars(function)["stated"] = Stated(**properties)
        return function

    return with_properties


def stated(function: Callable[..., Any]) -> Stated:
    """The properties that a rule or a score states."""
    return getattr(function, "stated", NOTHING_STATED)


Rule = Callable[[Tensor, Budget], Tensor]
"""``rule(score_N, budget) -> prob_N``: scores (N,) >= 0 of units with a gradient to probabilities (N,) float64 > 0.
Their sum does not grow with the rate."""


@stating(spends_budget=True)
def proportional(score_N: Tensor, budget: Budget) -> Tensor:
    """Probabilities proportional to ``score / sqrt(cost)``: ``inclusion_probabilities`` that cost ``1 - rate``."""
    score, cost = finite("score", score_N), _costs(score_N, budget.cost_N)
    floor_N, spent = torch.from_numpy(budget.floors(score, cost)), (1 - budget.rate) * float(cost.sum())
    return inclusion_probabilities(score_N, spent, floor=floor_N, cost_N=budget.cost_N)


def threshold(score_N: Tensor, budget: Budget) -> Tensor:
    """``1 - rate`` if the score is below the mean, else 1: scores [1, 1, 4] with rate 0.5 give [.5, .5, 1].

    Of all units fewer than the rate are dropped. Differences that float32 cannot hold do not count as below the mean.

    Source: DPPO, arXiv:2603.04135, section 4.2; after InfoBatch, arXiv:2303.04947.
    """
    score = finite("score", score_N)
    scaled = score / (score.max(initial=0.0) or 1.0)
    below = scaled < scaled.mean() * (1 - 1e-6) if len(scaled) else scaled > 0
    return torch.from_numpy(np.where(below, 1.0 - budget.rate, 1.0))


def uniform(score_N: Tensor, budget: Budget) -> Tensor:
    """``1 - rate`` for every unit: the baseline that a rule by scores has to beat."""
    return torch.full((len(finite("score", score_N)),), 1.0 - budget.rate, dtype=torch.float64)


RULES: dict[str, Rule] = {"proportional": proportional, "threshold": threshold, "uniform": uniform}


def finite(name: str, value_N: Tensor) -> np.ndarray:
    """``value_N`` as an array, (N,) float64, checked: finite and >= 0."""
    value = value_N.detach().double().numpy()
    if value.ndim != 1:
        raise ShapeError(f"{name} has shape {value.shape}, expected (N,): pass {name}.flatten()")
    if not (np.isfinite(value) & (value >= 0)).all():
        raise DesignError(f"{name} must be finite and >= 0: pass advantages.abs(), not advantages")
    return value


def _costs(size_N: Tensor, cost_N: Tensor | None) -> np.ndarray:
    if cost_N is None:
        return np.ones(size_N.numel())
    cost = finite("cost", cost_N)
    if len(cost) != size_N.numel():
        raise ShapeError(f"cost has {len(cost)} entries and size has {size_N.numel()}: they must be equal")
    if not (cost > 0).all():
        raise DesignError("cost must be > 0 everywhere: pass tokens.clamp_min(1), not tokens")
    return cost
