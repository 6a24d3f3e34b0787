"""Rewards of a reference policy on each prompt before training: the prompt's value, and the prior of its history.

A file of them has one line of JSON for each prompt: ``prompt``, its identity (``dppo.rewards.identities``, 16
hexadecimal digits, the keys of prompt histories), ``rewards`` of the reference's completions, and ``value``, their
``dppo.methods.a_star_po.optimal_value``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import DataError
from dppo.files import json_lines
from dppo.pruning.prior import SHARED_STRENGTH
from dppo.typed import check_fields, is_number
from dppo.types import check_lengths

ADVICE = "Write it anew: dppo values CONFIG.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptValues:
    """Values and reference rewards of the prompts of a dataset, row by row.

    Raises:
        DataError: a value or a moment is not finite, or a prompt has no samples.
    """

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

    def expected(self, rows: Tensor, *, strength: float = SHARED_STRENGTH) -> Expected:
        """The prior of a ``PromptHistory`` for some rows: for rewards of 0 and 1, a Beta distribution of each prompt.

        Samples of the prompt are mixed with ``strength`` of the mean over all, so no mean is exactly 0 or 1.
        """
        count_Q, total = self.count_P[rows], self.count_P.sum()

        def mixed(moment_P: Tensor) -> Tensor:
            shared = (self.count_P * moment_P).sum() / total
            return (count_Q * moment_P[rows] + strength * shared) / (count_Q + strength)

        mean_Q, square_Q = mixed(self.mean_P), mixed(self.square_P)
        return Expected(
            mean_QF=mean_Q[:, None],
            variance_QF=(square_Q - mean_Q.square()).clamp_min(0.0)[:, None],
            strength_QF=(count_Q + strength + 1.0)[:, None],
        )


def prompt_key(identity: int) -> str:
    """Hexadecimal identity of a prompt in a file of values: JSON's numbers end at 53 bits."""
    return f"{identity:016x}"


def read_values(path: str | Path, identities: np.ndarray) -> PromptValues:
    """Read the values of a dataset's prompts from a file, in any order of its lines. Other prompts are skipped."""
    keys = [prompt_key(int(identity)) for identity in identities]
    wanted, found = set(keys), {}
    for number, line in enumerate(json_lines(path, advice=ADVICE), 1):
        if line.get("prompt") in wanted:
            found[line["prompt"]] = _moments(line, f"{path}, line {number}")
    if missing := [row for row, key in enumerate(keys) if key not in found]:
        raise DataError(
            f"{path} has no value of {len(missing)} of {len(keys)} prompts, row {missing[0]} the first. Values belong "
            "to prompts as the model reads them, template included. Add what is missing: dppo values CONFIG.yaml"
        )
    columns = torch.tensor([found[key] for key in keys], dtype=torch.float64).reshape(-1, 4)
    value_P, count_P, mean_P, square_P = columns.unbind(1)
    return PromptValues(value_P=value_P, count_P=count_P, mean_P=mean_P, square_P=square_P)


def _moments(line: Mapping[str, Any], where: str) -> tuple[float, float, float, float]:
    """Value, count, mean and mean square of a line."""
    rewards, value = line.get("rewards"), line.get("value")
    numbers = [*rewards, value] if isinstance(rewards, list) and rewards else [None]
    if not all(is_number(x) and math.isfinite(x) for x in numbers):
        raise DataError(f"{where}: rewards={rewards!r:.60} and value={value!r} must be finite numbers. {ADVICE}")
    *own, value = map(float, numbers)  # pyright: ignore[reportArgumentType]
    return value, float(len(own)), sum(own) / len(own), sum(x * x for x in own) / len(own)
