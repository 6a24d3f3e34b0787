"""From a selection to the weights of its units, and what the weights cost in variance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """A way to weight what was kept, and whether it makes up for what was not. Call it as a function."""

    name: str
    """The key in ``WEIGHTINGS``."""
    compute: Callable[[Tensor, Tensor], Tensor]
    """``compute(keep_N, prob_N) -> weight_N``: (N,) bool and (N,) float64 to (N,) float64, 0 where not kept."""
    bias: str = ""
    """Why it is biased under every design, one clause; empty where it is ``1 / prob`` on average."""

    def __call__(self, keep_N: Tensor, prob_N: Tensor) -> Tensor:
        """Weights (N,) of the units kept (N,) bool with probabilities (N,)."""
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
"""``N / kept``, what averaging over the survivors amounts to. Source: CPPO, arXiv:2503.22342."""

WEIGHTINGS: dict[str, Weighting] = {each.name: each for each in (INVERSE_PROBABILITY, UNWEIGHTED, KEPT_MEAN)}


def effective_sample_size(weight_N: Tensor) -> float:
    """``(sum w)^2 / sum w^2``, in units: how many equal weights would carry as much; 0 if nothing was kept.

    Source: Kish, Survey Sampling (1965).
    """
    square = weight_N.double().square().sum().item()
    return weight_N.double().sum().item() ** 2 / square if square > 0 else 0.0


def relative_added_variance(prob_N: Tensor, score_N: Tensor) -> float:
    """Variance that dropping units adds, over the sum of squared norms: ``sum (1/prob - 1) norm^2 / sum norm^2``.

    Exact for independent draws, at any angles between gradients; fixed-size draws usually add less. With scores (N,)
    >= 0 in place of gradient norms it is a proxy, as good as the score.

    Returns:
        At least 0; infinite if a unit with a gradient has probability 0; 0 if no unit has one.
    """
    square = score_N.double().square()
    unit = torch.where(square > 0, (prob_N.double().reciprocal() - 1) * square, 0.0)
    total = square.sum().item()
    return unit.sum().item() / total if total > 0 else 0.0
