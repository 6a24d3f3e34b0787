"""What work costs: seconds by phase, fitted to steps that were timed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.optimize import nnls

from dppo.errors import raise_problems
from dppo_lab.planning.records import Option, Work

ALIKE = 0.05
"""Relative spread of tokens below which steps are too alike to tell fixed seconds from those of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An optimizer step that was timed, or the mean of several; work of all processes."""

    layout: str
    """``padded`` for TRL's own trainer, ``rows`` for ours."""
    generated: float
    """Tokens rolled out for the step."""
    completions: float
    """Completions rolled out."""
    forwarded: float
    """Tokens forwarded with a gradient, prompts and padding included."""
    rollout: float
    """Seconds."""
    reward: float
    """Seconds of rewards, draws and bookkeeping of completions."""
    update: float
    """Seconds of log-probabilities, forward and backward."""
    rest: float
    """All other seconds of the step: optimizer, loading, clipping, logging."""
    steps: float = 1.0
    """Optimizer steps that this is the mean of."""

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.rollout + self.reward + self.update + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of an optimizer step by phase."""

    rollout: float
    reward: float
    update: float
    rest: float

    @property
    def total(self) -> float:
        """Of the whole step."""
        return self.rollout + self.reward + self.update + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds on ``processes`` processes.

    Raises:
        ConfigError: a cost is negative or not finite, nothing costs anything, or there are no processes.
    """

    rollout_fixed: float
    """Of a step's rollouts, whatever their number, s."""
    rollout_token: float
    """Of a generated token, s."""
    completion: float
    """Of a completion: reward, draw, bookkeeping, s."""
    update_fixed: float
    """Of a step's forward and backward passes, s."""
    row_token: float
    """Of a token forwarded in rows, forward and backward, s."""
    padded_token: float
    """Of one forwarded by TRL's own trainer, s."""
    rest: float
    """Of a step: optimizer, loading, clipping, s."""
    processes: int = 1

    def __post_init__(self) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        problems = [
            f"{name}={value} must be >= 0 and finite. Try {name}=0.001."
            for name, value in values.items()
            if not 0 <= value < np.inf
        ]
        if self.processes < 1 or not self.rollout_token + self.row_token > 0:
            problems.append(f"processes={self.processes} must be >= 1, and some token must cost something.")
        raise_problems("Costs", problems)

    def seconds(self, work: Work, option: Option, processes: int) -> Seconds:
        """Of a step by phase, work being dealt out evenly.

        Args:
            work: of the step.
            option: says by which price a token is forwarded.
            processes: that it is done on, >= 1.
        """
        share = self.processes / processes
        token = self.padded_token if option.layout == "padded" else self.row_token
        return Seconds(
            rollout=self.rollout_fixed + share * self.rollout_token * work.generated,
            reward=share * self.completion * work.completions,
            update=self.update_fixed + share * token * work.forwarded,
            rest=self.rest,
        )


def fitted(timed: Sequence[Timed], processes: int = 1) -> Costs:
    """Costs that fit steps best: least squares, none of them negative.

    Where steps forward about equally many tokens all seconds are taken to be those of tokens. Of steps of one layout
    alone, a token of the other is taken to cost the same.

    Args:
        timed: at least one step.
        processes: that these ran on.
    """
    if not timed:
        raise_problems("fitted", ["there are no timed steps. Try fitted([Timed(...)])."])
    rows, padded = ([each for each in timed if (each.layout == "padded") == is_padded] for is_padded in (False, True))
    update_fixed, row_token = _line(rows or padded)
    rolled = [each for each in timed if each.generated > 0]  # a step on replayed completions rolls nothing out
    rollout_fixed, rollout_token = _fit(*_columns(rolled, "generated", "rollout"))
    completion_I, reward_I, rolled_I = _columns(rolled, "completions", "reward")
    _, rest_I, weight_I = _columns(rows or padded, "generated", "rest")
    return Costs(
        rollout_fixed=rollout_fixed,
        rollout_token=rollout_token,
        completion=float(rolled_I @ reward_I) / max(float(rolled_I @ completion_I), 1.0),
        update_fixed=update_fixed,
        row_token=row_token,
        padded_token=_price(padded, update_fixed) if padded else row_token,
        rest=float(weight_I @ rest_I) / float(weight_I.sum()),
        processes=processes,
    )


def _columns(timed: Sequence[Timed], amount: str, seconds: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(I,) amounts, seconds, and steps that each is the mean of."""
    rows = [(getattr(each, amount), getattr(each, seconds), each.steps) for each in timed]
    amount_I, seconds_I, steps_I = np.array(rows, dtype=float).reshape(-1, 3).T
    return amount_I, seconds_I, steps_I


def _line(timed: Sequence[Timed]) -> tuple[float, float]:
    """Fixed seconds of updates, and those of a token."""
    return _fit(*_columns(timed, "forwarded", "update"))


def _price(timed: Sequence[Timed], fixed: float) -> float:
    """Seconds of a token of updates, beside fixed ones that are known."""
    tokens = sum(each.forwarded * each.steps for each in timed)
    return sum(max(each.update - fixed, 0.0) * each.steps for each in timed) / tokens if tokens else 0.0


def _fit(amount_I: np.ndarray, seconds_I: np.ndarray, weight_I: np.ndarray) -> tuple[float, float]:
    """``fixed`` and ``each`` >= 0 of ``seconds = fixed + each * amount``; (0, 0) of no steps."""
    if not len(amount_I) or not amount_I.sum():
        return 0.0, 0.0
    root_I, largest = np.sqrt(weight_I), amount_I.max()
    if amount_I.std() < ALIKE * amount_I.mean():
        return 0.0, float((weight_I @ seconds_I) / (weight_I @ amount_I))
    design_I2 = np.stack([root_I, root_I * amount_I / largest], axis=1)
    (fixed, each), _ = nnls(design_I2, root_I * seconds_I)
    return float(fixed), float(each / largest)
