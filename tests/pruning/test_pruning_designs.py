"""Designs keep their promises, shown on exact distributions; diagnostics of weights by hand."""

import math

import numpy as np
import pytest
import torch
from arrays import tensor
from pruning_enumeration import distribution, expectation

from dppo.pruning import DESIGNS, POISSON
from dppo.pruning.designs import relative_added_variance
from dppo.rng import Purpose, generator

EXACT = 1e-12
PROBABILITIES = {
    "sum is an integer": [0.5, 0.25, 0.75, 0.9, 0.6],
    "sum is not an integer": [0.3, 0.55, 0.2, 0.7],
    "certain rows": [1.0, 0.4, 0.0, 0.6, 1.0],
    "everything certain": [1.0, 0.0, 1.0],
    "one row": [0.3],
    "no rows": [],
    "equal thirds": [1 / 3, 1 / 3, 1 / 3],
    "very small": [1e-6, 0.5, 0.499999],
    "near one": [1 - 1e-8, 0.5, 1 - 1e-8, 0.5],
    "an integer but for rounding": [0.7, 0.1, 0.2],
}


def bias(design, prob: torch.Tensor) -> float:
    """Largest gap between the probability asked for and the chance of being kept."""
    pairs = distribution(design, prob, prob)
    return (expectation(pairs, torch.Tensor.double) - prob).abs().max().item() if len(prob) else 0.0


def sizes(design, prob: torch.Tensor) -> set[int]:
    return {int(keep.sum()) for keep, chance in distribution(design, prob, prob) if chance > 1e-15}


def whole_sizes(prob: torch.Tensor) -> set[int]:
    total = math.fsum(prob.tolist())
    near = round(total)
    return {near} if abs(total - near) < 1e-9 else {math.floor(total), math.ceil(total)}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("values", PROBABILITIES.values(), ids=PROBABILITIES)
def test_every_claim_of_every_design(design, values):
    prob = tensor(values)
    pairs = distribution(design, prob, prob)
    assert sum(chance for _, chance in pairs) == pytest.approx(1.0, abs=EXACT)
    assert all(keep.shape == prob.shape and keep.dtype == torch.bool for keep, _ in pairs)
    assert all(keep[prob >= 1].all() and not keep[prob <= 0].any() for keep, _ in pairs)
    if design.unbiased:
        assert bias(design, prob) < EXACT
    if design.fixed_size:
        assert sizes(design, prob) <= whole_sizes(prob)


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_what_a_design_does_not_claim_is_indeed_false(design):
    worst = max(bias(design, tensor(values)) for values in PROBABILITIES.values())
    assert (worst < EXACT) == design.unbiased
    assert bool(design.reason) == (not design.unbiased)
    fixed = all(sizes(design, tensor(values)) <= whole_sizes(tensor(values)) for values in PROBABILITIES.values())
    assert fixed == design.fixed_size


AWKWARD = {
    "tenths": np.full(1000, 1 - 0.9),
    "thirds": np.full(999, 1 / 3),
    "mixed": np.concatenate([np.full(700, 0.07), np.full(100, 0.51)]),
    "few tenths": np.full(10, 0.1),
    "seven, one, two": np.array([0.7, 0.1, 0.2]),
    "summed downwards": np.random.default_rng(5).dirichlet(np.ones(5000)) * 32,
}


@pytest.mark.parametrize("design", [d for d in DESIGNS.values() if d.fixed_size], ids=lambda d: d.name)
@pytest.mark.parametrize("prob", AWKWARD.values(), ids=AWKWARD)
def test_an_integer_sum_is_met_in_spite_of_rounding(design, prob):
    prob_N = torch.from_numpy(prob.clip(max=1.0))
    total = math.fsum(prob_N.tolist())
    assert abs(total - round(total)) < 1e-9
    counts = {int(design.draw(prob_N, prob_N, generator(0, Purpose.CHECK, n)).sum()) for n in range(40)}
    assert counts == {round(total)}


def test_relative_added_variance_is_exact_for_gradients_at_right_angles():
    prob, norm = tensor([0.5, 0.25, 1.0, 0.8]), tensor([1.0, 0.5, 2.0, 1.5])
    added = expectation(distribution(POISSON, prob), lambda keep: ((keep / prob - 1) * norm).square().sum())
    exact = added.item() / norm.square().sum().item()
    assert relative_added_variance(prob, norm) == pytest.approx(exact, rel=1e-12)
    without_squares = ((1 / prob - 1) * norm).sum() / norm.sum()
    assert abs(without_squares - exact) > 0.05
