"""The test for a bias: its estimate is right on average, its bound holds at the stated rate, and bias is found."""

import math

import numpy as np
import pytest
import torch

from dppo.verification.draws import deviance, deviance_bound, estimate_bias

VECTORS = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRAM = VECTORS @ VECTORS.T
FULL = torch.ones(6, dtype=torch.float64)
NORM = float((FULL @ VECTORS).norm() ** 2)


def poisson_errors(rng, draws, prob, factor=1.0):
    """Errors of independent draws with weights ``factor / prob``."""
    keep = torch.from_numpy(rng.random((draws, 6)) < prob)
    return factor * keep / torch.as_tensor(prob) - 1


PROB = np.array([0.2, 0.5, 0.9, 0.4, 0.7, 0.3])


@pytest.mark.parametrize("factor", [1.0, 1.05, 0.8])
def test_the_squared_bias_is_right_on_average_and_its_standard_error_too(factor):
    rng = np.random.default_rng(0)
    found = [estimate_bias(poisson_errors(rng, 100, PROB, factor), GRAM, FULL) for _ in range(400)]
    squared = torch.tensor([bias.squared for bias in found])
    truth = (factor - 1) ** 2
    assert abs(squared.mean() - truth) < 4 * squared.std() / 20
    if factor == 1.0:
        stated = torch.tensor([bias.standard_error for bias in found]).mean()
        assert 0.85 < stated / squared.std() < 1.15


def test_the_bound_holds_at_its_rate_and_not_because_it_is_infinite():
    rng = np.random.default_rng(1)
    found = [estimate_bias(poisson_errors(rng, 200, PROB), GRAM, FULL) for _ in range(1000)]
    alarms = {rate: sum(bias.squared > bias.bound(rate) for bias in found) for rate in (0.5, 0.2, 0.05, 0.01)}
    assert all(count <= 1000 * rate for rate, count in alarms.items()) and alarms[0.5] > 20
    wrong = [estimate_bias(poisson_errors(rng, 200, PROB, 0.6), GRAM, FULL) for _ in range(50)]
    assert all(bias.squared > bias.bound(1e-5) for bias in wrong)


def test_the_spectrum_is_that_of_the_vectors():
    error_MN = poisson_errors(np.random.default_rng(2), 500, PROB)
    bias = estimate_bias(error_MN, GRAM, FULL)
    vector_MK = error_MN @ VECTORS
    eigenvalues = torch.linalg.eigvalsh(vector_MK.T.cov())
    assert bias.spectrum[0] == pytest.approx(float(eigenvalues.norm()) / 500 / NORM)
    assert bias.spectrum[1] == pytest.approx(float(eigenvalues.max()) / 500 / NORM)
    x = math.log(1 / 1e-3)
    assert bias.bound(1e-3) == pytest.approx(2 * bias.spectrum[0] * math.sqrt(x) + 2 * bias.spectrum[1] * x)


def test_no_variance_and_no_bias_passes_and_the_least_bias_without_variance_does_not():
    exact = estimate_bias(torch.zeros(10, 6, dtype=torch.float64), GRAM, FULL)
    assert exact.squared <= exact.bound(1e-4)
    slight = estimate_bias(torch.full((10, 6), 1e-4, dtype=torch.float64), GRAM, FULL)
    assert slight.squared == pytest.approx(1e-8)
    assert slight.squared > slight.bound(1e-4)


def test_deviance_by_hand():
    half = torch.tensor([0.5], dtype=torch.float64)
    keep = torch.zeros(100, 1, dtype=torch.bool)
    keep[:50] = True
    assert deviance(keep, half) == 0.0
    keep[:60] = True
    assert deviance(keep, half) == pytest.approx(math.sqrt(200 * (0.6 * math.log(1.2) + 0.4 * math.log(0.8))))
    assert deviance(keep, half) == pytest.approx(2.0, abs=0.02), "ten more than 50 of 100: two standard deviations"
    for prob in (0.0, 1.0):
        assert deviance(keep, torch.tensor([prob], dtype=torch.float64)) == math.inf
        certain = torch.full((10, 1), bool(prob))
        assert deviance(certain, torch.tensor([prob], dtype=torch.float64)) == 0.0


def test_deviance_stays_within_its_bound_at_the_stated_rate():
    rng, prob = np.random.default_rng(3), np.array([0.01, 0.3, 0.5, 0.97])
    alarms = 0
    for _ in range(500):
        keep = torch.from_numpy(rng.random((200, 4)) < prob)
        alarms += deviance(keep, torch.from_numpy(prob)) > deviance_bound(4, 0.05)
    assert alarms <= 25
    keep = torch.from_numpy(rng.random((2000, 4)) < prob + np.array([0, 0.1, 0, 0]))
    assert deviance(keep, torch.from_numpy(prob)) > deviance_bound(4, 1e-4)
