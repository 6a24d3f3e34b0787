"""Losses of pairs: numbers by hand, and weights that fall with the margin within their bounds."""

import math

import pytest
import torch

from dppo.objective import margin_weights, sigmoid_preference


def test_the_loss_of_known_margins():
    """-log sigmoid(0) = log 2, -log sigmoid(0.1 * 10) = log(1 + 1/e) = 0.313262. Slopes: -beta sigmoid(-beta m)."""
    margin = torch.tensor([0.0, 10.0, -10.0], dtype=torch.float64, requires_grad=True)
    loss = sigmoid_preference(margin, beta=0.1)
    assert loss.tolist() == pytest.approx([math.log(2), 0.3132617, 1.3132617], abs=1e-7)
    (slope,) = torch.autograd.grad(loss.sum(), margin)
    assert slope.tolist() == pytest.approx([-0.05, -0.1 / (1 + math.e), -0.1 / (1 + 1 / math.e)])


def test_margin_weights_are_1_at_the_centre_fall_and_stay_within_bounds():
    margin = torch.tensor([-50.0, 1.0, 2.0, 3.0, 50.0])
    weight = margin_weights(margin, centre=2.0, scale=1.0)
    assert weight[2] == 1 and (weight.diff() < 0).all()
    assert weight.tolist() == pytest.approx([1.8, 2 / (1 + math.exp(-1)), 1.0, 2 / (1 + math.e), 0.2], abs=1e-6)
