"""The frozen records that pass between parts.

Dimension letters, used as suffixes of tensor names everywhere:

====== =====================================================================
``P``  candidate prompts of a step
``G``  completions per prompt
``N``  completions of a step, ``P * G`` where every prompt was rolled out
``B``  completions of one micro-batch
``T``  tokens of a padded completion
====== =====================================================================

``prob`` is always an inclusion probability, ``weight`` always multiplies a whole completion,
``keep`` is always boolean, and ``mask`` is only ever about tokens.
"""

from dataclasses import dataclass

from torch import Tensor

from dppo.errors import ShapeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """What completion pruning may look at: one row per rolled-out completion, all of them, before any is dropped."""

    advantage_N: Tensor
    """(N,) advantages from the full group."""
    tokens_N: Tensor
    """(N,) tokens that carry loss, >= 0."""
    group_N: Tensor
    """(N,) integer, the same for completions of one prompt."""
    live_N: Tensor
    """(N,) bool, False where the gradient of a completion is known to be exactly zero."""
    confidence_N: Tensor | None = None
    """(N,) ``sqrt(sum_t (1 - p_t)^2)`` with ``p_t`` the probability of the sampled token, or None if unknown."""
    process_N: Tensor | None = None
    """(N,) integer, the process that rolled a completion out, or None if that is not known or there is one only."""

    def __post_init__(self) -> None:
        n = self.advantage_N.numel()
        for name in ("advantage_N", "tokens_N", "group_N", "live_N", "confidence_N", "process_N"):
            value = getattr(self, name)
            if value is not None and value.shape != (n,):
                raise ShapeError(f"Completions.{name} has shape {tuple(value.shape)}, expected ({n},)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What prompt pruning may look at: one row per candidate prompt, from history alone."""

    row_P: Tensor
    """(P,) integer, position of the prompt in the dataset."""
    signal_P: Tensor
    """(P,) expected gradient signal of the prompt's group, >= 0, any unit."""
    tokens_P: Tensor
    """(P,) expected completion tokens of the group, > 0."""
    seen_P: Tensor
    """(P,) bool, False for a prompt that was never rolled out: it is always kept."""

    def __post_init__(self) -> None:
        p = self.row_P.numel()
        for name in ("row_P", "signal_P", "tokens_P", "seen_P"):
            if getattr(self, name).shape != (p,):
                raise ShapeError(f"Candidates.{name} has shape {tuple(getattr(self, name).shape)}, expected ({p},)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A selection together with the probabilities it was made with: never the survivors alone."""

    keep_N: Tensor
    """(N,) bool."""
    prob_N: Tensor
    """(N,) float64 inclusion probability of each row, in [0, 1]; 0 only where the gradient is zero."""
    weight_N: Tensor
    """(N,) float64, what multiplies the whole loss of a row; 0 where it was not kept."""
