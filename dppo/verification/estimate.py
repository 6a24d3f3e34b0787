"""Is a random gradient unbiased? A test with a stated failure rate, from many draws on a subject that stands still.

The error of a draw is N numbers (``draws.py``), whose inner products with other errors come from the
subject's matrix. Nothing here runs the model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ROUNDING = 1e-12
"""Relative squared errors below this are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """A squared bias as draws see it, relative to the squared norm of the full gradient."""

    squared: float
    """Estimate of ``|E[g_hat] - g|^2 / |g|^2`` whose own mean is right: near 0, on either side, if there is no bias."""
    standard_error: float
    """Of ``squared`` where there is no bias."""
    variance: float
    """``E|g_hat - g|^2 / |g|^2`` of a single draw, its bias included."""
    spectrum: tuple[float, float]
    """``|lambda|_2 / M`` and ``max lambda / M``, of the eigenvalues of the error's covariance over ``|g|^2``."""

    def bound(self, failure_rate: float) -> float:
        """What ``squared`` exceeds with at most this probability if there is no bias.

        Without bias, ``M`` times the squared norm of a mean of M errors is close to ``sum_j lambda_j chi2_j`` with
        the eigenvalues of their covariance (central limit), and ``squared`` is that less its mean, over M. Such a sum
        is above its mean by more than ``2 |lambda|_2 sqrt(x) + 2 max(lambda) x`` with probability at most exp(-x).
        """
        x = math.log(1 / failure_rate)
        spread, largest = self.spectrum
        return max(2 * spread * math.sqrt(x) + 2 * largest * x, ROUNDING)

    @property
    def chance(self) -> float:
        """The rate at which ``bound`` is ``squared``: at most as likely is so much, or more, if there is no bias."""
        if self.squared <= ROUNDING:
            return 1.0
        spread, largest = self.spectrum
        if largest == 0:
            return 0.0
        root = (math.sqrt(spread**2 + 2 * largest * self.squared) - spread) / (2 * largest)
        return math.exp(-(root**2))


def estimate_bias(error_MN: Tensor, gram_NN: Tensor, full_N: Tensor) -> Bias:
    """The squared bias of draws, from the inner products of different draws' errors.

    ``mean over a != b of <e_a, e_b>`` has exactly ``|E e|^2`` as its mean, whatever the variance.
    Rows of ``error_MN`` are coefficients of M >= 2 independent errors.
    """
    draws = len(error_MN)
    norm = float(full_N @ gram_NN @ full_N)
    square_M = ((error_MN @ gram_NN) * error_MN).sum(1)
    total_N = error_MN.sum(0)
    across = float(total_N @ gram_NN @ total_N - square_M.sum()) / (draws * (draws - 1))
    values, vectors = torch.linalg.eigh(gram_NN)
    centred_MN = (error_MN - error_MN.mean(0)) @ (vectors * values.clamp_min(0).sqrt())
    eigenvalue_N = torch.linalg.eigvalsh(centred_MN.T @ centred_MN / (draws - 1)).clamp_min(0)
    spread = float(eigenvalue_N.norm())
    return Bias(
        squared=across / norm,
        standard_error=math.sqrt(2) * spread / (draws * norm),
        variance=float(square_M.mean()) / norm,
        spectrum=(spread / (draws * norm), float(eigenvalue_N.max()) / (draws * norm)),
    )


def deviance(keep_MN: Tensor, prob_N: Tensor) -> float:
    """Largest deviation of an inclusion frequency from its probability over the units, in standard deviations.

    A unit kept in a share f of M draws deviates by ``sqrt(2 M KL(f || prob))``, which for f near prob is the usual
    number of standard deviations, and which for every M exceeds t with probability at most ``2 exp(-t^2 / 2)``.
    Infinite if a unit of probability 0 was kept or one of probability 1 was not.
    """
    draws, prob = len(keep_MN), prob_N.numpy()
    share = keep_MN.double().mean(0).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(share > 0, share * np.log(share / prob), 0.0)
        dropped = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - prob)), 0.0)
    return float(np.sqrt(2 * draws * np.maximum(kept + dropped, 0.0)).max(initial=0.0))


def deviance_bound(units: int, failure_rate: float) -> float:
    """What ``deviance`` over ``units`` units exceeds with at most this probability.

    Units are those of all designs together.
    """
    return math.sqrt(2 * math.log(2 * units / failure_rate))
