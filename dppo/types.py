"""Frozen records that pass between parts.

Every record checks its shapes, types and stated ranges when it is made: ``ShapeError``, ``DataError``, ``ConfigError``.

Names of arrays end in their dimensions: ``P`` candidates for prompts, ``Q`` prompts that were rolled out, ``N``
completions, ``G`` completions of a group, ``F`` reward functions, ``U`` optimizer steps, ``B`` completions of a
micro-batch, ``T`` tokens (docs/glossary.md). ``prob`` is an inclusion probability, ``weight`` multiplies a loss,
``keep`` is boolean, and ``mask`` is about tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from dppo.errors import RewardError, ShapeError
from dppo.groups import each_group, equal_within_groups, group_count, group_sizes
from dppo.typed import check_fields

Record = TypeVar("Record")


def each_tensor(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """Copy of a dataclass with every tensor changed; other fields stay."""
    given: Any = record
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(given, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})


def concatenated(*records: Record) -> Record:
    """Records of a dataclass of tensors, or of such records, as one, each field in their order."""
    given: Any = records[0]
    joined = {}
    for field in fields(given):
        parts = [getattr(record, field.name) for record in records]
        joined[field.name] = torch.cat(parts) if isinstance(parts[0], Tensor) else concatenated(*parts)
    return replace(given, **joined)


def scattered(record: Record, unit_R: Tensor, size: int) -> Record:
    """Record about the units ``unit_R`` as one about all of ``size``: 0 or False for the others, in every tensor."""
    return each_tensor(record, lambda value: value.new_zeros(size, *value.shape[1:]).index_copy_(0, unit_R, value))


def check_lengths(record: Any, length: int) -> None:
    """Raise ``ShapeError`` for the first tensor of a record that is not of shape ``(length,)``."""
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor) and value.shape != (length,):
            found = tuple(value.shape)
            raise ShapeError(f"{type(record).__name__}.{field.name} has shape {found}, expected ({length},)")


class Columns:
    """Mixin for records whose tensors are all of one length, that of the first field."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_fields(self, "torch.ones(8)")
        record: Any = self
        check_lengths(record, getattr(record, fields(record)[0].name).numel())

    def take(self, unit_R: Tensor) -> Self:
        """The units at the given positions, or at which a mask is True."""
        return each_tensor(self, lambda value_N: value_N[unit_R])


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Rewards of whole groups of completions, from each reward function."""

    reward_NF: Tensor
    """(N, F) floating rewards of each function, any unit; NaN for a missing reward."""
    group_N: Tensor
    """(N,) int64 number of each completion's group, from 0 to Q - 1."""
    weight_F: Tensor | None = None
    """(F,) factor of each function's reward in the total; None means 1 each."""

    def __post_init__(self) -> None:
        check_fields(self, "Rewards(reward_NF=reward_N.double()[:, None], group_N=group_N)")
        reward, group_N = self.reward_NF, self.group_N
        if reward.dim() != 2 or not reward.shape[1] or not reward.is_floating_point():
            found = f"{reward.dtype} of shape {tuple(reward.shape)}"
            raise ShapeError(f"reward_NF is {found}, expected floats (N, F): write reward_N.double()[:, None].")
        if group_N.shape != (len(reward),) or group_N.dtype != torch.int64:
            found = f"{group_N.dtype} {tuple(group_N.shape)}"
            raise ShapeError(f"group_N is {found}, expected torch.int64 ({len(reward)},): write group_N.long().")
        if len(reward) and (int(group_N.min()) < 0 or int(group_sizes(group_N).min()) < 1):
            numbered = "group_N.unique(return_inverse=True)[1]"
            raise ShapeError(f"group_N must number the groups from 0 without a gap: write {numbered}.")
        if self.weight_F is not None and self.weight_F.shape != (reward.shape[1],):
            raise ShapeError(f"weight_F has shape {tuple(self.weight_F.shape)}, expected ({reward.shape[1]},)")
        if infinite := int(reward.isinf().sum()):
            unscored = "For a completion that cannot be scored return float('nan')."
            raise RewardError(f"{infinite} of {reward.numel()} rewards are infinite. {unscored}")

    @classmethod
    def of_groups(cls, reward_PG: Tensor) -> "Rewards":
        """Rewards of one function for groups of equal size >= 1. Integers and booleans become float64."""
        if reward_PG.dim() != 2 or reward_PG.numel() == 0:
            shape = f"reward_PG has shape {tuple(reward_PG.shape)}, expected (groups, completions of each), both >= 1"
            raise ShapeError(f"{shape}: write reward.view(-1, num_generations).")
        reward_N1 = reward_PG.reshape(-1, 1)
        return cls.in_groups(reward_N1 if reward_N1.is_floating_point() else reward_N1.double(), reward_PG.shape[1])

    @classmethod
    def in_groups(cls, reward_NF: Tensor, size: int | Tensor, weight_F: Tensor | None = None) -> "Rewards":
        """Rewards (N, F) of consecutive whole groups of ``size`` completions each: G >= 1, or (Q,) int64."""
        if isinstance(size, Tensor):
            group_N = torch.arange(len(size)).repeat_interleave(size)
        elif len(reward_NF) % size:
            raise ShapeError(f"{len(reward_NF)} rewards are no whole groups of {size}. Pass all rewards of each group.")
        else:
            group_N = torch.arange(len(reward_NF)) // size
        return cls(reward_NF=reward_NF, group_N=group_N, weight_F=weight_F)

    def __len__(self) -> int:
        return len(self.group_N)

    @property
    def groups(self) -> int:
        """Q, number of groups."""
        return group_count(self.group_N)

    @cached_property
    def total_N(self) -> Tensor:
        """(N,) float64 weighted sum over the functions that gave a reward, NaN without any."""
        return self._weighted_NF.nansum(1).masked_fill(self.reward_NF.isnan().all(1), torch.nan)

    @cached_property
    def _weighted_NF(self) -> Tensor:
        return self.reward_NF.double() if self.weight_F is None else self.reward_NF.double() * self.weight_F.double()

    @cached_property
    def mean_Q(self) -> Tensor:
        """(Q,) float64 mean total of each group, NaN without any reward."""
        return each_group(lambda total_QG: total_QG.nanmean(1), self.group_N, self.total_N)

    @cached_property
    def zero_variance_Q(self) -> Tensor:
        """(Q,) True for groups whose totals are equal up to rounding in the precision of the rewards."""
        eps, largest_N = torch.finfo(self.reward_NF.dtype).eps, self._weighted_NF.abs().nan_to_num(0.0).amax(1)
        return equal_within_groups(self.group_N, self.total_N, eps=eps, largest_N=largest_N)

    def take(self, keep_N: Tensor) -> "Rewards":
        """Rewards of some completions; their groups are numbered anew without gaps."""
        if bool(keep_N.all()):
            return self
        group_N = self.group_N[keep_N].unique(return_inverse=True)[1]
        return replace(self, reward_NF=self.reward_NF[keep_N], group_N=group_N)

    def only(self, keep_N: Tensor) -> "Rewards":
        """The same groups; rewards of all other completions become NaN."""
        return replace(self, reward_NF=self.reward_NF.masked_fill(~keep_N[:, None], torch.nan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions(Columns):
    """All completions of a rollout as completion pruning sees them, before any is dropped."""

    advantage_N: Tensor
    """(N,) float64 advantages from the full group."""
    tokens_N: Tensor
    """(N,) tokens that carry loss, >= 0."""
    group_N: Tensor
    """(N,) integer, the same for completions of one prompt."""
    live_N: Tensor
    """(N,) bool, False if the gradient of a completion is known to be exactly zero."""
    averaged_N: Tensor | None = None
    """(N,) divisor > 0 of a completion's sum over tokens: its tokens if the loss takes a mean within it; None for 1."""
    uncertainty_N: Tensor | None = None
    """(N,) ``sqrt(sum_t (1 - p_t)^2)`` with ``p_t`` the probability of the sampled token; None if unknown."""
    process_N: Tensor | None = None
    """(N,) integer process that rolled a completion out; None if unknown or if there is one only."""
    weight_N: Tensor | None = None
    """(N,) float64 factor >= 0 of a completion's loss before any is dropped: the weight of its group; None for 1."""
    beta: float = 0.0
    """Coefficient of the KL term in the loss."""
    other: float | None = 0.0
    """Size >= 0 of the loss terms without an advantage, as an advantage with as large a gradient; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(Columns):
    """All candidate prompts of a step as prompt pruning sees them, from history alone."""

    row_P: Tensor
    """(P,) integer, position of the prompt in the dataset; -1 for a prompt without one."""
    signal_P: Tensor
    """(P,) expected gradient signal of the prompt's group, >= 0, any unit."""
    tokens_P: Tensor
    """(P,) expected tokens of a completion of the prompt, > 0."""
    seen_P: Tensor
    """(P,) bool, False for a prompt that was never rolled out: it is always kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw(Columns):
    """Units that were kept, with the probabilities of all units: never the survivors alone."""

    keep_N: Tensor
    """(N,) bool."""
    prob_N: Tensor
    """(N,) float64 inclusion probability of each unit, in [0, 1]; 0 if the gradient is zero, or a rule is biased."""
    weight_N: Tensor
    """(N,) float64 factor of the whole loss of a unit; 0 if it was not kept."""

    @classmethod
    def whole(cls, live_N: Tensor) -> "Draw":
        """Draw that keeps everything with a gradient, at weight 1."""
        return cls(keep_N=live_N.clone(), prob_N=live_N.double(), weight_N=live_N.double())


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Candidate prompts that were fixed before a draw, and the draw of those to roll out."""

    candidates: Candidates
    draw: Draw
    """(P,) in each field; its weights multiply the gradient."""

    @property
    def row_Q(self) -> Tensor:
        """(Q,) dataset rows of the kept prompts, in the order of the block."""
        return self.candidates.row_P[self.draw.keep_N]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Forward passes and the tokens that they compute: shared prompts once, padding included."""

    passes: float = 0.0
    """Forward passes, >= 0; a differentiated one counts with its recomputation and its backward pass."""
    tokens: float = 0.0
    """Tokens of these passes, >= 0."""

    def __add__(self, more: "Work") -> "Work":
        return Work(passes=self.passes + more.passes, tokens=self.tokens + more.tokens)

    def __sub__(self, less: "Work") -> "Work":
        return Work(passes=self.passes - less.passes, tokens=self.tokens - less.tokens)
