"""Weights of the units of a selection, and the variance that they add."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """Weights of kept units, and their bias. Call it as a function."""

    name: str
    """The key in ``WEIGHTINGS``."""
    compute: Callable[[Tensor, Tensor], Tensor]
    """``compute(keep_N, prob_N) -> weight_N``: (N,) bool and (N,) float64 to (N,) float64, 0 where not kept."""
    bias: str = ""
    """Why it is biased under every design, one clause; empty if it is ``1 / prob`` on average."""

    def __call__(self, keep_N: Tensor, prob_N: Tensor) -> Tensor:
        """(N,) float64 weights: ``compute(keep_N, prob_N)``."""
        return self.compute(keep_N, prob_N)


def _inverse(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    return torch.where(keep_N, prob_N.clamp_min(torch.finfo(torch.float64).tiny).reciprocal(), 0.0)


def _mean(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    return keep_N.double() * (keep_N.numel() / max(int(keep_N.sum()), 1))


INVERSE_PROBABILITY = Weighting(name="inverse_probability", compute=_inverse)
"""``1 / prob``: the only weight that is unbiased for every loss.

Source: Horvitz and Thompson, A generalization of sampling without replacement from a finite universe (1952)."""
UNWEIGHTED = Weighting(
    name="unweighted",
    compute=lambda keep_N, prob_N: keep_N.double(),
    bias="what is kept is not weighted (unweighted), so nothing stands for what was dropped",
)
KEPT_MEAN = Weighting(
    name="kept_mean",
    compute=_mean,
    bias="the mean is over what is kept (kept_mean), whatever its probability",
)
"""``N / kept``, as in a mean over the survivors. Source: CPPO, arXiv:2503.22342."""

WEIGHTINGS: dict[str, Weighting] = {each.name: each for each in (INVERSE_PROBABILITY, UNWEIGHTED, KEPT_MEAN)}


def effective_sample_size(weight_N: Tensor) -> float:
    """``(sum w)^2 / sum w^2``: number of units with equal weights of the same variance; 0 if none was kept.

    Source: Kish, Survey Sampling (1965).
    """
    square = weight_N.double().square().sum().item()
    return weight_N.double().sum().item() ** 2 / square if square > 0 else 0.0


def relative_added_variance(prob_N: Tensor, score_N: Tensor) -> float:
    """Variance that dropping units adds, over the sum of squared norms: ``sum (1/prob - 1) norm^2 / sum norm^2``.

    It is exact for independent draws; fixed-size draws usually add less. Scores (N,) >= 0 stand for gradient norms. The
    result is >= 0: infinite if a unit with a gradient has probability 0, and 0 without gradients.
    """
    square = score_N.double().square()
    unit = torch.where(square > 0, (prob_N.double().reciprocal() - 1) * square, 0.0)
    total = square.sum().item()
    return unit.sum().item() / total if total > 0 else 0.0
