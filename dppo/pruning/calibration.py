"""Calibration of expected second moments by those that were found: isotonic regression over quantiles.

Source: Barlow et al., Statistical Inference under Order Restrictions (1972).
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dppo.moment_samples import MomentSamples
from dppo.rng import Purpose, generator

KINDS, KIND_UNITS = 8, 16
"""Most kinds of units, by quantiles of the expectation, and the fewest units of each if there are more than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Expected V to found V: a step function that never falls.

    After one visit a history still expects two thirds of the mean from a prompt that gave nothing, and most such
    prompts give nothing again. Means are weighted by one over the probability of being asked, so a rare success counts
    for all prompts that are like it, and no prompt is given up for its own record.
    """

    edge_K: Tensor
    """(K - 1,) float64 ascending, between neighbouring kinds."""
    value_K: Tensor
    """(K,) float64 ascending, V of each kind, >= 0."""

    def __call__(self, expected_N: Tensor) -> Tensor:
        """(N,) float64 V, >= 0, of units of which (N,) was expected."""
        return self.value_K[torch.searchsorted(self.edge_K, expected_N.double())]

    @classmethod
    def of(cls, samples: MomentSamples) -> "Calibration":
        """The calibration by at least one unit; each kind gets one more unit of the mean over all (Laplace's rule)."""
        expected_N, found_N, weight_N = (
            each_N.numpy() for each_N in (samples.expected_N, samples.found_N, samples.weight_N)
        )
        edge_K, kind_N = _kinds_of(expected_N)
        weight_K, total_K = (np.bincount(kind_N, each_N) for each_N in (weight_N, weight_N * found_N))
        one, mean = weight_N.mean(), total_K.sum() / weight_K.sum()
        value_K = _rising((weight_K + one)[None], (total_K + one * mean)[None])[0]
        return cls(edge_K=torch.from_numpy(edge_K), value_K=torch.from_numpy(value_K))


def by_others(samples: MomentSamples) -> Tensor:
    """(N,) float64 V of each of at least two units, calibrated by the other half of the units.

    With its own half, noise would look like signal, and a useless rate would be chosen. Halves are drawn with a fixed
    seed: equal samples give equal numbers, and no order of a dataset is in step with them.
    """
    half_N = torch.from_numpy(generator(0, Purpose.CHECK, len(samples)).permutation(len(samples)) % 2)
    value_N = torch.zeros(len(samples), dtype=torch.float64)
    for half in (0, 1):
        own_N = half_N == half
        value_N[own_N] = Calibration.of(samples.part(~own_N))(samples.expected_N[own_N])
    return value_N


def calibrated(weight_MN: np.ndarray, expected_N: np.ndarray, found_N: np.ndarray) -> np.ndarray:
    """(M, N) means of what was found, by expectation, which never fall: expectations that are right on average.

    Noise in an expectation makes units look more different than they are. If it predicts nothing, all units are equal.
    """
    if np.array_equal(expected_N, found_N):
        return np.broadcast_to(found_N, weight_MN.shape)
    kind_N = _kinds_of(expected_N)[1]
    belongs = (kind_N[:, None] == np.arange(kind_N.max() + 1)).astype(np.float64)
    return _rising(weight_MN @ belongs, weight_MN @ (belongs * found_N[:, None]))[:, kind_N]


def _kinds_of(expected_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K - 1,) edges and (N,) the kind of each unit, by quantiles of what was expected; every kind has a unit.

    Edges are midway between neighbours, so that a rounding moves no unit into another kind.
    """
    kinds = max(2, min(KINDS, len(expected_N) // KIND_UNITS))
    edges = np.quantile(expected_N, np.arange(1, kinds) / kinds)
    _, kind_N = np.unique(np.searchsorted(edges, expected_N), return_inverse=True)
    ends = [(expected_N[kind_N == kind].min(), expected_N[kind_N == kind].max()) for kind in range(kind_N.max() + 1)]
    return np.array([(before[1] + after[0]) / 2 for before, after in pairwise(ends)]), kind_N


def _rising(weight: np.ndarray, total: np.ndarray) -> np.ndarray:
    """(M, K) isotonic means of kinds in their order, from weights and weighted totals (M, K).

    The value of a kind is the maximum over starts of the minimum over ends of block means.
    """
    weight, total = (np.pad(each.cumsum(1), ((0, 0), (1, 0))) for each in (weight, total))
    found = np.zeros((len(weight), weight.shape[1] - 1))
    for kind in range(found.shape[1]):
        run_weight = weight[:, None, kind + 1 :] - weight[:, : kind + 1, None]
        run_total = total[:, None, kind + 1 :] - total[:, : kind + 1, None]
        means = np.divide(run_total, run_weight, out=np.full_like(run_total, np.inf), where=run_weight > 0)
        found[:, kind] = means.min(2).max(1)
    return np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)  # of kinds that are not there
