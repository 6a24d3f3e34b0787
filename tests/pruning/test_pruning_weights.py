"""Weights and their diagnostics, on golden values and exact expectations."""

import pytest
import torch
from pruning_enumeration import all_masks, expectation

from dppo.pruning import (
    INVERSE_PROBABILITY,
    KEPT_MEAN,
    UNWEIGHTED,
    effective_sample_size,
    relative_added_variance,
)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


PROB = tensor([0.5, 0.25, 1.0, 0.8])
NORM = tensor([1.0, 0.5, 2.0, 1.5])


def test_weights_of_rows_that_were_not_kept_are_zero_even_at_probability_zero():
    keep = torch.tensor([True, False, False])
    assert INVERSE_PROBABILITY(keep, tensor([0.25, 0.5, 0.0])).tolist() == [4, 0, 0]
    assert UNWEIGHTED(keep, tensor([0.25, 0.5, 0.0])).tolist() == [1, 0, 0]
    assert KEPT_MEAN(keep, tensor([0.25, 0.5, 0.0])).tolist() == [3, 0, 0]
    assert KEPT_MEAN(~keep & keep, PROB[:3]).tolist() == [0, 0, 0]


def test_effective_sample_size():
    assert effective_sample_size(tensor([2, 2, 0, 2])) == 3
    assert effective_sample_size(tensor([3, 1])) == pytest.approx(16 / 10)
    assert effective_sample_size(tensor([0, 0])) == 0


def test_relative_added_variance_is_exact_for_gradients_at_right_angles():
    gradient = torch.diag(NORM)
    full = gradient.sum(0)
    pairs = all_masks(PROB)
    added = expectation(pairs, lambda keep: ((keep / PROB) @ gradient - full).square().sum())
    assert relative_added_variance(PROB, NORM) == pytest.approx(added.item() / NORM.square().sum().item(), rel=1e-12)


def test_a_variance_without_squares_would_be_another_number():
    gradient = torch.diag(NORM)
    added = expectation(all_masks(PROB), lambda keep: ((keep / PROB) @ gradient - gradient.sum(0)).square().sum())
    wrong = ((1 / PROB - 1) * NORM).sum() / NORM.sum()
    assert abs(wrong - added / NORM.square().sum()) > 0.05


def test_relative_added_variance_at_its_ends():
    assert relative_added_variance(tensor([1, 1]), tensor([3, 4])) == 0
    assert relative_added_variance(tensor([0, 1]), tensor([0, 4])) == 0
    assert relative_added_variance(tensor([0, 1]), tensor([1, 4])) == float("inf")
    assert relative_added_variance(tensor([0.5]), tensor([0])) == 0
