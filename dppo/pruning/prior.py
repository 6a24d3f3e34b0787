"""Priors for prompts that a run has not visited: pass rates that a dataset carries, or rewards of a reference policy.

A file of rewards has a line of JSON for each prompt: ``prompt``, its identity (``dppo.rewards.identities``) in 16
hexadecimal digits, ``rewards`` of the reference's completions, and ``value``, their ``a_star_po.optimal_value``.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import DataError
from dppo.files import json_lines
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import PROMPT_AUTO, gain_of
from dppo.pruning.history import PromptHistory, SignalPrior
from dppo.pruning.prompts import PromptPruning
from dppo.typed import check_fields, is_number
from dppo.types import check_lengths

SHARED_STRENGTH = 2.0
"""Prior strength of the mean over all prompts, in completions; with it no rate is exactly 0 or 1."""
EXAMPLE = "prompt_prior: {column: solve_rate, completions: 4}"
COMMAND = "python examples/prompt_values.py CONFIG.yaml"
ADVICE = f"Write it anew: {COMMAND}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrior:
    """Pass rates of prompts, and their strength in completions."""

    rate_P: Tensor
    """(P,) float64 pass rate of each prompt, in [0, 1]; NaN if unknown."""
    completions: float
    """Completions of the policy in training that a rate counts as, > 0: the rates are of another policy."""

    def __post_init__(self) -> None:
        check_fields(self, "PromptPrior(rate_P=rate_P, completions=4)", completions="(0, inf)")
        if self.rate_P.dim() != 1 or not bool(self.known_P.any()):
            raise DataError("a prior needs the pass rate of at least one prompt. Leave prompt_prior out.")
        outside_P = (self.rate_P < 0) | (self.rate_P > 1)
        if bool(outside_P.any()):
            row = int(outside_P.nonzero()[0])
            wrong = f"the pass rate of row {row} is {self.rate_P[row]:g}, and rates are in [0, 1]"
            raise DataError(f"{wrong}. Divide the column by 100, or by its answers, or name another: {EXAMPLE}.")

    def __len__(self) -> int:
        return len(self.rate_P)

    @property
    def known_P(self) -> Tensor:
        """(P,) bool, True for prompts with a rate."""
        return ~self.rate_P.isnan()

    def expected(self, rows: Tensor) -> Expected:
        """Prior of the rewards of some rows: a Beta distribution of each, of the mean rate if its own is unknown."""
        rate_Q, own_Q = self._mean_P()[rows], self.known_P[rows].double() * self.completions
        return _one_function(rate_Q, rate_Q * (1 - rate_Q), own_Q + SHARED_STRENGTH)

    def signal_chance_P(self, generations: int) -> Tensor:
        """(P,) float64 probability of a group with signal, under the Beta distribution of the rate; NaN if unknown."""
        right_P = self._mean_P() * (self.completions + SHARED_STRENGTH)
        one_2P = torch.stack([right_P, self.completions + SHARED_STRENGTH - right_P])
        alike_2P = torch.ones_like(one_2P)
        for k in range(max(generations, 2)):  # a group of one has twice the variance of a reward
            alike_2P = alike_2P * (one_2P + k) / (one_2P.sum(0) + k)
        return (1 - alike_2P.sum(0)).clamp_min(0.0).masked_fill(~self.known_P, math.nan)

    def _mean_P(self) -> Tensor:
        """(P,) mean of each prompt's Beta distribution."""
        mean = self.rate_P[self.known_P].mean()
        own_P = (self.completions * self.rate_P + SHARED_STRENGTH * mean) / (self.completions + SHARED_STRENGTH)
        return torch.where(self.known_P, own_P, mean)


class CheckedPrior:
    """Pass rates that a run uses until pruning by them has cost more than it saved, at first visits of prompts."""

    def __init__(self, given: PromptPrior | None) -> None:
        self._given, self.rejected = given, False
        self.first_visits = MomentSamples.none()
        """Squared signals that the rates predicted for first visits, and those found."""
        self._chance_P: dict[int, Tensor] = {}

    @property
    def rates(self) -> PromptPrior | None:
        """Pass rates in use; None without any, or if they were rejected."""
        return None if self.rejected else self._given

    def of_signals(self, history: PromptHistory, generations: int) -> SignalPrior | None:
        """Prior of the squared signal of groups of ``generations`` completions; its strength is in groups."""
        if self.rates is None:
            return None
        if generations not in self._chance_P:
            self._chance_P[generations] = self.rates.signal_chance_P(generations)
        return history.signal_prior(self._chance_P[generations], self.rates.completions / generations)

    def after(self, first_visits: MomentSamples, pruning: PromptPruning) -> list[str]:
        """Add first visits, and reject the rates if pruning half of them loses; a message if that happens now."""
        self.first_visits = self.first_visits.after(first_visits)
        if len(self.first_visits) < PROMPT_AUTO.fewest:
            return []
        gain = gain_of(self.first_visits, pruning.half(self.first_visits))
        self.rejected = gain.high < 1
        half = f"at the first visits of {gain.units} prompts, pruning half of them by it has the efficiency {gain}"
        return [f"prompt_prior is turned off: {half} of pruning none"] if self.rejected else []


def read_prior(given: Any) -> Any:
    """Parse a setting ``prompt_prior`` that a flag gives as JSON; return any other value unchanged."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def prior_problems(given: Any) -> list[str]:
    """Problems of a setting ``prompt_prior``, one sentence each; empty if it is valid."""
    if not isinstance(given, Mapping) or {*given} != {"column", "completions"}:
        return [f"prompt_prior={given!r:.80} must name a column and its strength in completions. Try {EXAMPLE}."]
    problems, strength = [], given["completions"]
    if not isinstance(given["column"], str) or not given["column"]:
        problems.append(f"prompt_prior: column={given['column']!r:.40} must be the name of a column. Try {EXAMPLE}.")
    if not is_number(strength) or not 0 < strength < math.inf:
        problems.append(f"prompt_prior: completions={strength!r:.40} must be a number > 0. Try {EXAMPLE}.")
    return problems


def prior_of_column(values: Iterable[Any], completions: float, column: str) -> PromptPrior:
    """Prior from a column of a dataset: numbers in [0, 1], None for rows without a rate; else a ``DataError``."""
    rates = []
    for row, value in enumerate(values):
        if value is not None and not is_number(value):
            wrong = f"prompt_prior: row {row} of column {column!r} is {value!r:.40}; pass rates are numbers in [0, 1]"
            raise DataError(f"{wrong}. Name another column: {EXAMPLE}.")
        rates.append(math.nan if value is None else float(value))
    return PromptPrior(rate_P=torch.tensor(rates, dtype=torch.float64), completions=float(completions))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptValues:
    """Values and reference rewards of the prompts of a dataset, row by row."""

    value_P: Tensor
    """(P,) float64 the best value of each prompt within reach of the reference, in the unit of rewards."""
    count_P: Tensor
    """(P,) float64 completions that the reference sampled of each, >= 1."""
    mean_P: Tensor
    """(P,) float64 their mean reward."""
    square_P: Tensor
    """(P,) float64 the mean of their squared rewards."""

    def __post_init__(self) -> None:
        check_fields(self, "read_values('problems.values.jsonl', history.identities)")
        check_lengths(self, self.value_P.numel())
        columns = (self.value_P, self.count_P, self.mean_P, self.square_P)
        if not all(bool(column.isfinite().all()) for column in columns) or not bool((self.count_P >= 1).all()):
            raise DataError("values and moments must be finite, of at least one sample each: read_values(path, ids).")

    def __len__(self) -> int:
        return len(self.value_P)

    def expected(self, rows: Tensor) -> Expected:
        """Prior of a ``PromptHistory`` for some rows: for rewards of 0 and 1, a Beta distribution of each prompt."""
        count_Q, total = self.count_P[rows], self.count_P.sum()

        def mixed(moment_P: Tensor) -> Tensor:
            shared = (self.count_P * moment_P).sum() / total
            return (count_Q * moment_P[rows] + SHARED_STRENGTH * shared) / (count_Q + SHARED_STRENGTH)

        mean_Q = mixed(self.mean_P)
        variance_Q = (mixed(self.square_P) - mean_Q.square()).clamp_min(0.0)
        return _one_function(mean_Q, variance_Q, count_Q + SHARED_STRENGTH)


def _one_function(mean_Q: Tensor, variance_Q: Tensor, count_Q: Tensor) -> Expected:
    """Expected rewards of one function, of which the mean counts as so many completions."""
    strength_Q = count_Q + 1.0
    return Expected(mean_QF=mean_Q[:, None], variance_QF=variance_Q[:, None], strength_QF=strength_Q[:, None])


def prompt_key(identity: int) -> str:
    """Hexadecimal identity of a prompt in a file of values: JSON's numbers end at 53 bits."""
    return f"{identity:016x}"


def read_values(path: str | Path, identities: np.ndarray) -> PromptValues:
    """Read the values of a dataset's prompts from a file, in any order of its lines. Other prompts are skipped."""
    keys = [prompt_key(int(identity)) for identity in identities]
    wanted, found = set(keys), {}
    for number, line in enumerate(json_lines(path, advice=ADVICE), 1):
        if line.get("prompt") not in wanted:
            continue
        rewards, value = line.get("rewards"), line.get("value")
        numbers = [*rewards, value] if isinstance(rewards, list) and rewards else [None]
        if not all(is_number(x) and math.isfinite(x) for x in numbers):
            wrong = f"{path}, line {number}: rewards={rewards!r:.60} and value={value!r} must be finite numbers"
            raise DataError(f"{wrong}. {ADVICE}")
        *own, value = map(float, numbers)  # pyright: ignore[reportArgumentType]
        found[line["prompt"]] = value, float(len(own)), sum(own) / len(own), sum(x * x for x in own) / len(own)
    if missing := [row for row, key in enumerate(keys) if key not in found]:
        lacks = f"{path} has no value of {len(missing)} of {len(keys)} prompts as the model reads them, template"
        raise DataError(f"{lacks} included; the first is row {missing[0]}. Add them: {COMMAND}")
    columns = torch.tensor([found[key] for key in keys], dtype=torch.float64).reshape(-1, 4)
    value_P, count_P, mean_P, square_P = columns.unbind(1)
    return PromptValues(value_P=value_P, count_P=count_P, mean_P=mean_P, square_P=square_P)
