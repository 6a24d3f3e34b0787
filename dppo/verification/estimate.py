"""Test for a bias of a random gradient, with a stated failure rate, from many draws on fixed rollouts."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ROUNDING = 1e-12
"""Relative squared errors below this are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Estimate of a squared bias, relative to the squared norm of the full gradient ``g``."""

    squared: float
    """Unbiased estimate of ``|E[g_hat] - g|^2 / |g|^2``: near 0, above or below, if there is no bias."""
    standard_error: float
    """Of ``squared`` if there is no bias."""
    variance: float
    """``E|g_hat - g|^2 / |g|^2`` of a single draw, its bias included."""
    spectrum: tuple[float, float]
    """``|lambda|_2 / M`` and ``max lambda / M``, of the eigenvalues of the error's covariance over ``|g|^2``."""

    def bound(self, failure_rate: float) -> float:
        """A bound that ``squared`` exceeds with at most this probability if there is no bias.

        Without bias, ``M`` times the squared norm of a mean of M errors is close to ``sum_j lambda_j chi2_j`` with the
        eigenvalues of their covariance (central limit), and ``squared`` is that minus its mean, over M. Such a sum
        exceeds its mean by more than ``2 |lambda|_2 sqrt(x) + 2 max(lambda) x`` with probability at most exp(-x).
        """
        x = math.log(1 / failure_rate)
        spread, largest = self.spectrum
        return max(2 * spread * math.sqrt(x) + 2 * largest * x, ROUNDING)

    @property
    def chance(self) -> float:
        """The failure rate whose ``bound`` is ``squared``: at most the p-value of no bias."""
        if self.squared <= ROUNDING:
            return 1.0
        spread, largest = self.spectrum
        if largest == 0:
            return 0.0
        root = (math.sqrt(spread**2 + 2 * largest * self.squared) - spread) / (2 * largest)
        return math.exp(-(root**2))


def estimate_bias(error_MN: Tensor, gram_NN: Tensor, full_N: Tensor) -> Bias:
    """The squared bias from M >= 2 independent draws, whose rows in ``error_MN`` are coefficients of errors.

    ``mean over a != b of <e_a, e_b>`` has the mean ``|E e|^2``, for any variance.
    """
    draws = len(error_MN)
    norm = float(full_N @ gram_NN @ full_N)
    square_M = ((error_MN @ gram_NN) * error_MN).sum(1)
    total_N = error_MN.sum(0)
    across = float(total_N @ gram_NN @ total_N - square_M.sum()) / (draws * (draws - 1))
    centred_MN = (error_MN - error_MN.mean(0)) @ root(gram_NN)
    eigenvalue_N = torch.linalg.eigvalsh(centred_MN.T @ centred_MN / (draws - 1)).clamp_min(0)
    spread = float(eigenvalue_N.norm())
    return Bias(
        squared=across / norm,
        standard_error=math.sqrt(2) * spread / (draws * norm),
        variance=float(square_M.mean()) / norm,
        spectrum=(spread / (draws * norm), float(eigenvalue_N.max()) / (draws * norm)),
    )


def root(gram_NN: Tensor) -> Tensor:
    """(N, N) matrix R with ``R R^T = gram``: coefficients times R have the inner products of the gradients."""
    values, vectors = torch.linalg.eigh(gram_NN)
    return vectors * values.clamp_min(0).sqrt()


def deviance(keep_MN: Tensor, prob_N: Tensor) -> float:
    """Largest deviation of an inclusion frequency from its probability over N units, in standard deviations.

    A unit kept in a share f of M draws deviates by ``sqrt(2 M KL(f || prob))``. For every M it exceeds t with
    probability at most ``2 exp(-t^2 / 2)``. It is infinite if a unit of probability 0 was kept, or one of probability 1
    was not.
    """
    draws, prob = len(keep_MN), prob_N.numpy()
    share = keep_MN.double().mean(0).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(share > 0, share * np.log(share / prob), 0.0)
        dropped = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - prob)), 0.0)
    return float(np.sqrt(2 * draws * np.maximum(kept + dropped, 0.0)).max(initial=0.0))


def deviance_bound(units: int, failure_rate: float) -> float:
    """A bound that ``deviance`` over ``units`` units of all designs exceeds with at most this probability."""
    return math.sqrt(2 * math.log(2 * units / failure_rate))
