"""Samples of second moments of gradients, by which ceilings are computed and rates chosen."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.groups import each_group
from dppo.rng import Purpose, generator
from dppo.types import Candidates, Columns, Draw, Rewards, concatenated, each_tensor

REMEMBERED = 1024
"""Latest visits of prompts that are kept: the policy changes."""
RESAMPLES = 400
"""Bootstrap resamples per interval."""
FEW = 32
"""Units below which a resample may be empty; it then has all of them. Above, one in exp(32) resamples is."""
FADING = 0.8
"""Decay per step of the moving average of other terms: the policy changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentSamples(Columns):
    """Second moments V of the gradients of some units, and their costs c, each as expected and as found."""

    expected_N: Tensor
    """(N,) float64 expected V, >= 0: the square of what a rule ranks by."""
    found_N: Tensor
    """(N,) float64 found V; the expected one if no more is known."""
    expected_cost_N: Tensor
    """(N,) float64 expected cost, > 0."""
    cost_N: Tensor
    """(N,) float64 found cost, >= 0."""
    weight_N: Tensor
    """(N,) float64 one over the probability that the unit is in the sample."""
    paid_N: Tensor
    """(N,) float64 share of a cost that no choice changes, >= 0: for completions the rollout."""
    group_N: Tensor
    """(N,) int64 from 0 without a gap: units of one group are resampled together."""

    def __len__(self) -> int:
        return len(self.expected_N)

    @classmethod
    def known(
        cls, value_N: Tensor, cost_N: Tensor, group_N: Tensor | None = None, *, paid: float = 0.0
    ) -> "MomentSamples":
        """Units of which no more than the expectation is known: V (N,) >= 0 and c (N,) > 0.

        ``group_N`` (N,) is equal for units that are resampled together, None for each by itself. ``paid`` >= 0 is the
        cost of all units that no choice changes.
        """
        value_N, cost_N = value_N.double(), cost_N.double()
        return cls(
            expected_N=value_N,
            found_N=value_N,
            expected_cost_N=cost_N,
            cost_N=cost_N,
            weight_N=torch.ones_like(value_N),
            paid_N=torch.full_like(value_N, paid / max(len(value_N), 1)),
            group_N=torch.arange(len(value_N)) if group_N is None else group_N.unique(return_inverse=True)[1],
        )

    @classmethod
    def none(cls) -> "MomentSamples":
        """No units."""
        return cls.known(torch.zeros(0), torch.zeros(0))

    @classmethod
    def of_visits(
        cls, candidates: Candidates, draw: Draw, rewards: Rewards, signal_Q: Tensor, tokens_N: Tensor
    ) -> "MomentSamples":
        """Visits of the prompts of a block that have a history and were rolled out.

        ``rewards`` are of their groups, in the order of the block; a group without any reward is left out.
        ``signal_Q`` (Q,) is the signal of each group, and ``tokens_N`` (N,) the tokens of each completion.
        """
        visit_Q = candidates.seen_P[draw.keep_N] & ~rewards.mean_Q.isnan()

        def of_visits(value_P: Tensor) -> Tensor:
            return value_P[draw.keep_N][visit_Q].double()

        tokens_Q = each_group(lambda tokens_QG: tokens_QG.mean(1), rewards.group_N, tokens_N.double())
        return cls(
            expected_N=of_visits(candidates.signal_P).square(),
            found_N=signal_Q[visit_Q].double().square(),
            expected_cost_N=of_visits(candidates.tokens_P),
            cost_N=tokens_Q[visit_Q],
            weight_N=of_visits(draw.prob_N).reciprocal(),
            paid_N=torch.zeros_like(tokens_Q[visit_Q]),
            group_N=torch.arange(int(visit_Q.sum())),
        )

    def after(self, more: "MomentSamples", most: int = REMEMBERED) -> "MomentSamples":
        """The last ``most`` units of these and then ``more``; groups of the two stay apart."""
        both = concatenated(self, replace(more, group_N=more.group_N + self.groups))
        last = each_tensor(both, lambda value_N: value_N[-most:])
        return replace(last, group_N=last.group_N.unique(return_inverse=True)[1])

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group_N.max()) + 1 if len(self) else 0

    @property
    def exact(self) -> bool:
        """True if nothing beyond the expectation is known of any unit."""
        return torch.equal(self.expected_N, self.found_N)

    def part(self, chosen_N: Tensor) -> "MomentSamples":
        """The units at which ``chosen_N``, (N,) bool, is True, each by itself."""
        part = each_tensor(self, lambda value_N: value_N[chosen_N])
        return replace(part, group_N=torch.arange(len(part)))

    def resampled(self) -> np.ndarray:
        """(M, N) float64 weights of the units in each bootstrap resample of groups."""
        return _resamples(self.groups)[:, self.group_N.numpy()] * self.weight_N.numpy()

    def resampled_sums(self, value_NK: np.ndarray) -> np.ndarray:
        """(M, K) float64 weighted sums over each resample: ``resampled() @ value_NK``, in less work."""
        weighed_NK, group_N = value_NK * self.weight_N.numpy()[:, None], self.group_N.numpy()
        return _resamples(self.groups) @ np.stack([np.bincount(group_N, column) for column in weighed_NK.T], 1)

    def saved(self) -> dict[str, list[float]]:
        """All columns as JSON values, which ``of_saved`` reads back bit by bit."""
        return {each.name: getattr(self, each.name).tolist() for each in fields(self)}

    @classmethod
    def of_saved(cls, saved: Mapping[str, Any]) -> "MomentSamples":
        """The samples that ``saved`` wrote."""
        kinds = {each.name: torch.int64 if each.name == "group_N" else torch.float64 for each in fields(cls)}
        return cls(**{name: torch.tensor(saved[name], dtype=kind) for name, kind in kinds.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTerms:
    """Running gradient size of the KL term and the entropy bonus, as squared advantages.

    It comes from the completions kept in earlier steps, weighted by one over their probability. So it is about every
    completion with a gradient, and no draw of a step has a part in the estimate it is scored with.
    """

    square: float = 0.0
    """Decayed sum of squared gradients of these terms, in the unit of ``unit``, >= 0."""
    unit: float = 0.0
    """Decayed sum of the squared gradients that advantages of 1 would have in the same completions, >= 0."""

    @property
    def advantage(self) -> float | None:
        """Size of an advantage with as large a gradient, a root mean square; None before the first step."""
        # Rounded: ranks and layouts must agree, and the last bits of a sum depend on its order.
        return float(f"{(self.square / self.unit) ** 0.5:.4g}") if self.unit else None

    def after(self, square: float, unit: float) -> "OtherTerms":
        """The terms after one more optimizer step; sums that are not finite are left out."""
        if not (0 <= square < np.inf and 0 < unit < np.inf):
            return self
        return OtherTerms(square=FADING * self.square + square, unit=FADING * self.unit + unit)


NO_OTHERS = OtherTerms()
"""Before the first step."""


def _resamples(units: int) -> np.ndarray:
    """(M, N) float64 Poisson(1) counts of each unit in each resample.

    The numbers are fixed, so equal samples give equal intervals on every rank, and no draw has a part in them.

    Source: Hanley & MacGibbon (2006), Creating non-parametric bootstrap samples using Poisson frequencies.
    """
    count_MN = _resamples_to(1 << max(units - 1, 0).bit_length())[:, :units]
    return count_MN if units > FEW else np.where(count_MN.any(1, keepdims=True), count_MN, 1.0)


@functools.lru_cache(maxsize=8)
def _resamples_to(most: int) -> np.ndarray:
    return generator(0, Purpose.CHECK, most).poisson(1.0, size=(RESAMPLES, most)).astype(np.float64)
