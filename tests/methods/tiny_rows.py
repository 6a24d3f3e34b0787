"""Rows of a dataset and a softmax table of tokens, small enough to go through every draw: gradients by hand."""

import numpy as np
import torch
from arrays import candidates_of

from dppo.verification.enumerate import every_way

N, T, V = 5, 4, 5
_RNG = np.random.default_rng(7)
THETA = _RNG.normal(size=(V, V))
TOKEN_NT = _RNG.integers(V, size=(N, T + 1))
LENGTH_N = np.array([4, 1, 3, 2, 4])
ROWS = candidates_of([3.0, 0.4, 1.5, 0.7, 2.0], tokens=(LENGTH_N + 1.0).tolist())


def row_gradients():
    """(N, V * V) gradient of each row's summed negative log-likelihood: probabilities less the token, by hand."""
    prob = np.exp(THETA) / np.exp(THETA).sum(1, keepdims=True)
    found = np.zeros((N, V, V))
    for row in range(N):
        for before, token in zip(TOKEN_NT[row], TOKEN_NT[row, 1 : LENGTH_N[row] + 1], strict=False):
            found[row, before] += prob[before] - np.eye(V)[token]
    return torch.from_numpy(found.reshape(N, -1))


GRADIENT_NK = row_gradients()
FULL = GRADIENT_NK.sum(0) / LENGTH_N.sum()
"""Of TRL's loss over all rows: the mean over their trained tokens."""


def expectation(method, rows=ROWS, weighted=True):
    """The mean over every draw of the gradient that a step has, from the weights and the shares of the method."""

    def one(tape):
        draw = method.rows.draw(rows, tape)
        weight_N = draw.weight_N if weighted else draw.keep_N.double()
        return (weight_N * method.shares(draw, torch.from_numpy(LENGTH_N))) @ GRADIENT_NK

    ways = list(every_way(one))
    assert abs(sum(chance for _, chance in ways) - 1) < 1e-12
    return sum(chance * gradient for gradient, chance in ways)


def relative_error(found, wanted=FULL):
    return float((found - wanted).norm() / wanted.norm())
