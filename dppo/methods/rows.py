"""Methods that prune rows of a dataset: in supervised training, and pairs in training on preferences.

Nothing is rolled out, so the tokens of every row are known before the draw, and with them every denominator.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from dppo.errors import in_words
from dppo.methods.method import ROUTER_BIAS
from dppo.pruning import PromptPruning, Schedule, constant, uniform
from dppo.typed import check_fields
from dppo.types import Draw

RowScore = Literal["norm", "loss"]
"""Score that is recorded of a visit: about the norm of the row's gradient, or its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMethod:
    """A way to drop rows of a dataset by the scores of their last visits. Presets are values of this class."""

    name: str
    paper: str
    """arXiv number and title."""
    rows: PromptPruning
    """The draw among rows."""
    score: RowScore = "norm"
    per_epoch: bool = False
    """True for one draw among all rows of an epoch, in place of one among those of each step."""
    over_kept: bool = False
    """True if a step is a mean over the rows kept, in place of one over all its rows."""
    schedule: Schedule = constant
    """From the share of training done to a factor of the rate."""
    deviations: tuple[str, ...] = ()
    """Differences from the paper, one sentence each."""
    router_coef: float = 0.0
    """Coefficient of the router loss of a mixture of experts, >= 0."""

    def __post_init__(self) -> None:
        check_fields(self, 'replace(ROW_METHODS["dppo"], score="loss")', score=get_args(RowScore))

    @property
    def biases(self) -> tuple[str, ...]:
        """Reasons why a step's expected gradient is not that of all its rows; empty if it is."""
        kept = (
            "a step is a mean over the rows kept, a quotient of two random numbers (bias O(1/n)), and larger than the "
            "mean over all its rows by the inverse of the share kept"
        )
        reasons = {
            f"row pruning is biased: {self.rows.bias}": bool(self.rows.bias),
            kept: self.over_kept,
            f"{ROUTER_BIAS} (bias O(1/n))": self.router_coef > 0,
        }
        return tuple(reason for reason, holds in reasons.items() if holds and self.rows.rate)

    def at(self, done: float) -> "RowMethod":
        """The method at a point of a run, its rate multiplied by the schedule's factor."""
        factor = self.schedule(done)
        return self if factor == 1 else replace(self, rows=self.rows.at_rate(self.rows.rate * factor))

    def shares(self, draw: Draw, count_N: Tensor, part_N: Tensor | None = None) -> Tensor:
        """(N,) float64 factors of each row's sum of losses in a mean, fixed before the draw unless ``over_kept``.

        ``count_N`` (N,) are the units of each row in the mean: its trained tokens, or 1. ``part_N`` (N,) int64 >= 0 is
        for a mean of the means over parts, such as TRL's micro-batches; None for one part.
        """
        if self.over_kept:
            total_N = count_N.double()[draw.keep_N].sum().expand(len(count_N))
            return total_N.clamp(min=1.0).reciprocal()
        part_N = torch.zeros(len(count_N), dtype=torch.int64) if part_N is None else part_N
        total_K = part_N.bincount(count_N.double())
        return (total_K.clamp(min=1.0)[part_N] * len(part_N.unique())).reciprocal()

    def describe(self) -> str:
        """Lines that describe the method, its biases and its deviations."""
        score = {"norm": "the norm of its gradient", "loss": "its loss"}[self.score]
        biased = "; ".join(self.biases)
        lines = [
            f"rows: {self.rows.words(f'{score} when last seen') or 'nothing pruned'}",
            f"one draw {'for an epoch' if self.per_epoch else 'for each step'}",
            *([] if self.schedule is constant else [f"rate by schedule {in_words(self.schedule)}"]),
            f"biased: {biased}" if biased else "unbiased: the gradient of all rows, expected",
        ]
        return "\n".join([*lines, *(f"deviation: {each}" for each in self.deviations)])


DPPO_ROWS = RowMethod(
    name="dppo",
    paper="arXiv:2603.04135, Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization",
    rows=PromptPruning(rate=0.5, floor=0.2, budget="tokens"),
    deviations=("the paper prunes prompts and completions of reinforcement learning; rows are our use of its weights",),
)
UNIFORM_ROWS = replace(DPPO_ROWS, name="uniform", rows=replace(DPPO_ROWS.rows, rule=uniform, floor=0.1), deviations=())
"""The baseline: all rows alike."""
