"""Methods for rows that are there before a step: of supervised training, and pairs of training on preferences.

Nothing is rolled out, so tokens are known of every row, dropped ones included: a mean over the tokens of a whole step
has a denominator that is known before the draw, and is exact.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dppo.errors import in_words, raise_problems
from dppo.pruning import PromptPruning, Schedule, constant, uniform
from dppo.typed import check_fields
from dppo.types import Draw

RowScore = Literal["norm", "loss"]
"""What is recorded of a visit: about the norm of the row's gradient, or its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMethod:
    """How rows of a dataset are dropped, by what was recorded at their last visit. Presets are values of this class.

    Raises:
        ConfigError: the score is unknown.
    """

    name: str
    paper: str
    """arXiv number and title."""
    rows: PromptPruning
    """Which rows are trained on."""
    score: RowScore = "norm"
    per_epoch: bool = False
    """Whether one draw among all rows of the dataset stands for an epoch, and not one among those of each step."""
    over_kept: bool = False
    """Whether a step is a mean over what is kept, and not over all its rows."""
    schedule: Schedule = constant
    """From the share of training done to what multiplies the rate."""
    deviations: tuple[str, ...] = ()
    """Where this differs from the paper, one sentence each."""
    router_coef: float = 0.0
    """Coefficient of the router loss of a mixture of experts, >= 0."""

    def __post_init__(self) -> None:
        check_fields(self, 'replace(ROW_METHODS["dppo"], score="loss")')
        if self.score not in ("norm", "loss"):
            raise_problems("RowMethod", [f"score={self.score!r} must be 'norm' or 'loss'. Write score='norm'."])

    @property
    def biases(self) -> tuple[str, ...]:
        """Every reason why a step's expected gradient is not that of all its rows; empty where it is."""
        if not self.rows.rate:
            return ()
        rows = [f"row pruning is biased: {self.rows.bias}"] if self.rows.bias else []
        if self.over_kept:
            rows.append(
                "a step is a mean over what is kept, a quotient of two random numbers (ratio, O(1/n)), and larger than "
                "that over all its rows by the inverse of the share kept"
            )
        if self.router_coef:
            rows.append(
                "the router loss is biased under pruning: it is a product of two means over tokens, which are taken "
                "over the rows kept, weighted: biased O(1/n)"
            )
        return tuple(rows)

    def at(self, done: float) -> "RowMethod":
        """The method at a point of a run, its rate multiplied by the schedule's factor."""
        factor = self.schedule(done)
        return self if factor == 1 else replace(self, rows=self.rows.at_rate(self.rows.rate * factor))

    def denominator(self, draw: Draw, count_N: Tensor) -> float:
        """What a sum over the kept rows is divided by, at least 1.

        ``count_N`` is (N,) what the mean counts of each row of the step: its trained tokens, or 1.
        """
        counted = count_N.double()[draw.keep_N] if self.over_kept else count_N.double()
        return max(counted.sum().item(), 1.0)

    def shares(self, draw: Draw, count_N: Tensor, part_N: Tensor) -> Tensor:
        """(N,) what each row's sum of losses is multiplied by for a mean of means over parts, known before the draw.

        Each row belongs to the part ``part_N``, (N,) int64 >= 0: TRL's micro-batches of all ranks. ``count_N`` is (N,)
        what the mean of a part counts of each row: its trained tokens, or 1.
        """
        if self.over_kept:
            return torch.full((len(part_N),), 1 / self.denominator(draw, count_N), dtype=torch.float64)
        total_K = torch.zeros(int(part_N.max()) + 1, dtype=torch.float64).index_add(0, part_N, count_N.double())
        return (total_K.clamp(min=1.0)[part_N] * len(part_N.unique())).reciprocal()

    def describe(self) -> str:
        """What the method does, in words, with its biases and deviations."""
        score = {"norm": "the norm of its gradient", "loss": "its loss"}[self.score]
        words = self.rows.words(f"{score} when last seen") or "nothing pruned"
        lines = [f"rows: {words}", f"one draw {'for an epoch' if self.per_epoch else 'for each step'}"]
        if self.schedule is not constant:
            lines.append(f"rate by schedule {in_words(self.schedule)}")
        reasons = self.biases
        lines.append(f"biased: {'; '.join(reasons)}" if reasons else "unbiased: the gradient of all rows, expected")
        return "\n".join([*lines, *(f"deviation: {each}" for each in self.deviations)])


DPPO_ROWS = RowMethod(
    name="dppo",
    paper="arXiv:2603.04135, Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization",
    rows=PromptPruning(rate=0.5, floor=0.2, budget="tokens"),
    deviations=("the paper prunes prompts and completions of reinforcement learning; rows are our use of its weights",),
)
UNIFORM_ROWS = replace(DPPO_ROWS, name="uniform", rows=replace(DPPO_ROWS.rows, rule=uniform, floor=0.1), deviations=())
"""The control: all rows alike."""
