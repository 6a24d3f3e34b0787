"""Knowledge of a step's prompts from before their rollout: no reward and no draw of the step has a part in it."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dppo.errors import DataError, ShapeError
from dppo.moment_samples import NO_OTHERS, MomentSamples, OtherTerms
from dppo.typed import check_fields
from dppo.types import each_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected rewards of each group from history alone, fixed before the rollout."""

    mean_QF: Tensor
    """(Q, F) float64 expected reward of each function, in its unit."""
    variance_QF: Tensor
    """(Q, F) float64 variance of one completion's reward around its prompt's mean, >= 0."""
    strength_QF: Tensor
    """(Q, F) float64 completions that the mean counts as, >= 0."""

    def __post_init__(self) -> None:
        check_fields(self, "Expected(mean_QF=half_QF, variance_QF=half_QF / 2, strength_QF=half_QF * 4)")
        shapes = {self.mean_QF.shape, self.variance_QF.shape, self.strength_QF.shape}
        if len(shapes) != 1 or self.mean_QF.dim() != 2:
            raise ShapeError(f"Expected has shapes {sorted(map(tuple, shapes))}, expected one: (groups, functions).")
        for name, lowest in (("mean_QF", -torch.inf), ("variance_QF", 0), ("strength_QF", 0)):
            value = getattr(self, name)
            if not (value.isfinite() & (value >= lowest)).all():
                raise DataError(f"Expected.{name} must be finite{' and >= 0' if lowest == 0 else ''}.")

    def __len__(self) -> int:
        return len(self.mean_QF)

    def total_variance_Q(self, weight_F: Tensor | None = None) -> Tensor:
        """(Q,) variance of one completion's weighted sum of rewards, with functions taken as independent."""
        return self.variance_QF.sum(1) if weight_F is None else self.variance_QF @ weight_F.double().square()

    def where(self, keep_Q: Tensor, other: "Expected") -> "Expected":
        """This record's numbers at the groups of ``keep_Q``, and ``other``'s at all others."""
        pairs = ((each.name, getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return Expected(**{name: torch.where(keep_Q[:, None], mine, theirs) for name, mine, theirs in pairs})

    def take(self, group_Q: Tensor) -> "Expected":
        """Expected rewards of the given groups."""
        return each_tensor(self, lambda value_QF: value_QF[group_Q])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Knowledge of the groups of a step from before their rollout. A part is None if it is unknown."""

    expected: Expected | None = None
    """Expected rewards of each group from history, for baselines."""
    value_Q: Tensor | None = None
    """(Q,) float64 optimal value of each prompt under a reference, estimated beforehand: ``optimal_value``."""
    samples: MomentSamples | None = None
    """Completions with a gradient of earlier steps, from which a rate is chosen."""
    others: OtherTerms = NO_OTHERS
    """Gradient size of the KL term and the entropy bonus in earlier steps."""

    def __post_init__(self) -> None:
        check_fields(self, "StepContext(expected=history.expected(row_Q, step))")
        if self.value_Q is not None and self.value_Q.dim() != 1:
            raise ShapeError(f"value_Q has shape {tuple(self.value_Q.shape)}, expected (groups,).")
        if self.expected is not None and self.value_Q is not None and len(self.expected) != len(self.value_Q):
            raise ShapeError(f"expected has {len(self.expected)} groups and value_Q {len(self.value_Q)}.")

    @property
    def groups(self) -> int | None:
        """Q, number of groups; None if nothing is known of single groups."""
        known = self.expected if self.value_Q is None else self.value_Q
        return None if known is None else len(known)

    def take(self, group_Q: Tensor) -> "StepContext":
        """Context of the given groups; samples of earlier steps stay."""
        expected = None if self.expected is None else self.expected.take(group_Q)
        return replace(self, expected=expected, value_Q=None if self.value_Q is None else self.value_Q[group_Q])


NOTHING_KNOWN = StepContext()
"""Context of a step without earlier steps."""
