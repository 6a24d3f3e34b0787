"""Weights and their diagnostics, on golden values and exact expectations."""

import pytest
import torch
from pruning_enumeration import all_masks, expectation

from dppo.pruning import (
    added_variance_estimate,
    effective_sample_size,
    inverse_probability,
    kept_mean,
    largest_weight,
    relative_added_variance,
    unweighted,
)
from dppo.types import Draw


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


PROB = tensor([0.5, 0.25, 1.0, 0.8])
NORM = tensor([1.0, 0.5, 2.0, 1.5])


def draw(keep: torch.Tensor) -> Draw:
    return Draw(keep_N=keep, prob_N=PROB, weight_N=inverse_probability(keep, PROB))


def test_weights_of_rows_that_were_not_kept_are_zero_even_at_probability_zero():
    keep = torch.tensor([True, False, False])
    assert inverse_probability(keep, tensor([0.25, 0.5, 0.0])).tolist() == [4, 0, 0]
    assert unweighted(keep, tensor([0.25, 0.5, 0.0])).tolist() == [1, 0, 0]
    assert kept_mean(keep, tensor([0.25, 0.5, 0.0])).tolist() == [3, 0, 0]
    assert kept_mean(~keep & keep, PROB[:3]).tolist() == [0, 0, 0]


def test_effective_sample_size_and_largest_weight():
    assert effective_sample_size(tensor([2, 2, 0, 2])) == 3
    assert effective_sample_size(tensor([3, 1])) == pytest.approx(16 / 10)
    assert effective_sample_size(tensor([0, 0])) == 0
    assert largest_weight(tensor([0.5, 4, 1])) == 4
    assert largest_weight(tensor([])) == 0


def test_relative_added_variance_is_exact_for_gradients_at_right_angles():
    gradient = torch.diag(NORM)
    full = gradient.sum(0)
    pairs = all_masks(PROB)
    added = expectation(pairs, lambda keep: ((keep / PROB) @ gradient - full).square().sum())
    assert relative_added_variance(PROB, NORM) == pytest.approx(added.item() / NORM.square().sum().item(), rel=1e-12)


def test_relative_added_variance_at_its_ends():
    assert relative_added_variance(tensor([1, 1]), tensor([3, 4])) == 0
    assert relative_added_variance(tensor([0, 1]), tensor([0, 4])) == 0
    assert relative_added_variance(tensor([0, 1]), tensor([1, 4])) == float("inf")
    assert relative_added_variance(tensor([0.5]), tensor([0])) == 0


def test_the_estimate_from_kept_rows_has_the_right_mean():
    exact = ((1 / PROB - 1) * NORM.square()).sum().item()
    mean = expectation(all_masks(PROB), lambda keep: tensor(added_variance_estimate(draw(keep), NORM)))
    assert mean.item() == pytest.approx(exact, rel=1e-12)


def test_without_the_second_division_its_mean_would_be_wrong():
    exact = ((1 / PROB - 1) * NORM.square()).sum().item()
    wrong = expectation(all_masks(PROB), lambda keep: ((1 / PROB - 1) * NORM.square())[keep].sum())
    assert abs(wrong.item() - exact) > 0.1 * exact


def test_the_estimate_does_not_look_at_dropped_rows():
    keep = torch.tensor([True, False, True, False])
    hidden = torch.where(keep, NORM, float("nan"))
    assert added_variance_estimate(draw(keep), hidden) == added_variance_estimate(draw(keep), NORM)
