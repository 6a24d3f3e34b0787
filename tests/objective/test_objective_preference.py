"""Weights of pairs: numbers by hand, falling with the margin within their bounds."""

import math

import pytest
import torch

from dppo.objective import margin_weights


def test_margin_weights_are_1_at_the_centre_fall_and_stay_within_bounds():
    margin = torch.tensor([-50.0, 1.0, 2.0, 3.0, 50.0])
    weight = margin_weights(margin, centre=2.0, scale=1.0)
    assert weight[2] == 1 and (weight.diff() < 0).all()
    assert weight.tolist() == pytest.approx([1.8, 2 / (1 + math.exp(-1)), 1.0, 2 / (1 + math.e), 0.2], abs=1e-6)
