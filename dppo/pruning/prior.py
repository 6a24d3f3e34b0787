"""What a dataset says of the pass rates of its prompts, before a run has visited them."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import DataError, raise_problems
from dppo.typed import check_fields, is_number

SHARED_STRENGTH = 2.0
"""Completions that the mean over all prompts is worth when mixed with a prompt's own pass rate: none is certain."""
EXAMPLE = "prompt_prior: {column: solve_rate, completions: 4}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrior:
    """Pass rates of prompts, and how many of a run's own completions they are worth.

    Raises:
        DataError: a rate outside [0, 1], or no rate at all.
        ConfigError: ``completions`` is not above 0.
    """

    rate_P: Tensor
    """(P,) float64 pass rate of each prompt, in [0, 1]; NaN where it is not known."""
    completions: float
    """Completions of the policy in training that a rate is worth, > 0: the rates are of another policy."""

    def __post_init__(self) -> None:
        check_fields(self, "PromptPrior(rate_P=rate_P, completions=4)")
        known_P = ~self.rate_P.isnan()
        if self.rate_P.dim() != 1 or not bool(known_P.any()):
            raise DataError("a prior needs the pass rate of one prompt at least. Leave prompt_prior out.")
        outside_P = known_P & ~((self.rate_P >= 0) & (self.rate_P <= 1))
        if bool(outside_P.any()):
            row = int(outside_P.nonzero()[0])
            raise DataError(
                f"the pass rate of row {row} is {self.rate_P[row]:g}, and rates are in [0, 1]. Divide the column "
                f"by 100, or by the answers that it counts, or name another: {EXAMPLE}."
            )
        if not 0 < self.completions < math.inf:
            raise_problems("prompt_prior", [f"completions={self.completions:g} must be > 0. Try {EXAMPLE}."])

    def __len__(self) -> int:
        return len(self.rate_P)

    @property
    def known_P(self) -> Tensor:
        """(P,) bool, where a rate is known."""
        return ~self.rate_P.isnan()

    def expected(self, rows: Tensor) -> Expected:
        """The prior of a baseline from history: a Beta distribution for each prompt; the mean of all where unknown."""
        rate_Q, known_Q = self._mixed()[rows], self.known_P[rows]
        own_Q = known_Q.double() * self.completions
        return Expected(
            mean_QF=rate_Q[:, None],
            variance_QF=(rate_Q * (1 - rate_Q))[:, None],
            strength_QF=(own_Q + SHARED_STRENGTH + 1.0)[:, None],
        )

    def signal_chance_P(self, generations: int) -> Tensor:
        """(P,) float64 how likely each prompt's group has rewards that differ, by the Beta distribution of its rate.

        What a group of ``generations`` completions adds to the gradient goes with it. For groups of one, twice the
        variance of a reward. NaN where no rate is known.
        """
        right_P = self._mixed() * (self.completions + SHARED_STRENGTH)
        wrong_P = self.completions + SHARED_STRENGTH - right_P
        size = max(generations, 2)
        flat_P = torch.zeros_like(right_P)
        for one_P in (right_P, wrong_P):
            chance_P = torch.ones_like(right_P)
            for k in range(size):
                chance_P = chance_P * (one_P + k) / (right_P + wrong_P + k)
            flat_P = flat_P + chance_P
        return (1 - flat_P).clamp_min(0.0).masked_fill(~self.known_P, math.nan)

    def _mixed(self) -> Tensor:
        """(P,) rates mixed with their mean, which stands where none is known."""
        mean = self.rate_P[self.known_P].mean()
        own_P = (self.completions * self.rate_P + SHARED_STRENGTH * mean) / (self.completions + SHARED_STRENGTH)
        return torch.where(self.known_P, own_P, mean)


def read_prior(given: Any) -> Any:
    """A setting ``prompt_prior`` that is a dictionary in words, as flags have it, as one; anything else as it is."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def prior_problems(given: Any) -> list[str]:
    """What is wrong with a setting ``prompt_prior``, one sentence each; empty where nothing is."""
    if not isinstance(given, Mapping) or {*given} != {"column", "completions"}:
        return [f"prompt_prior={given!r:.80} must name a column and what it is worth. Try {EXAMPLE}."]
    problems, worth = [], given["completions"]
    if not isinstance(given["column"], str) or not given["column"]:
        problems.append(f"prompt_prior: column={given['column']!r:.40} is no name of a column. Try {EXAMPLE}.")
    if not is_number(worth) or not 0 < worth < math.inf:
        problems.append(f"prompt_prior: completions={worth!r:.40} must be a number > 0. Try {EXAMPLE}.")
    return problems


def prior_of_column(values: Iterable[Any], completions: float, column: str) -> PromptPrior:
    """The prior that a column of a dataset gives: numbers in [0, 1], None where a row has none.

    Raises:
        DataError: a value is no number, or outside [0, 1], or no row has one.
    """
    found = list(values)
    wrong = [row for row, value in enumerate(found) if value is not None and not is_number(value)]
    if wrong:
        raise DataError(
            f"prompt_prior: row {wrong[0]} of column {column!r} is {found[wrong[0]]!r:.40}, and pass rates are numbers "
            f"in [0, 1]. Name another column: {EXAMPLE}."
        )
    rates = [math.nan if value is None else float(value) for value in found]
    return PromptPrior(rate_P=torch.tensor(rates, dtype=torch.float64), completions=float(completions))
