"""Weights and their diagnostics, on golden values and exact expectations."""

import pytest
import torch
from arrays import tensor
from pruning_enumeration import all_masks, expectation

from dppo.pruning import effective_sample_size, relative_added_variance

PROB = tensor([0.5, 0.25, 1.0, 0.8])
NORM = tensor([1.0, 0.5, 2.0, 1.5])


def test_effective_sample_size():
    assert effective_sample_size(tensor([2, 2, 0, 2])) == 3
    assert effective_sample_size(tensor([3, 1])) == pytest.approx(16 / 10)
    assert effective_sample_size(tensor([0, 0])) == 0


def test_relative_added_variance_is_exact_for_gradients_at_right_angles():
    gradient = torch.diag(NORM)
    full = gradient.sum(0)
    added = expectation(all_masks(PROB), lambda keep: ((keep / PROB) @ gradient - full).square().sum())
    exact = added.item() / NORM.square().sum().item()
    assert relative_added_variance(PROB, NORM) == pytest.approx(exact, rel=1e-12)
    without_squares = ((1 / PROB - 1) * NORM).sum() / NORM.sum()
    assert abs(without_squares - exact) > 0.05
