"""Rows: dropping them leaves the expected gradient as it is, over the tokens of the whole step and no others.

Rows and a softmax table of tokens are small enough to go through every draw, with gradients by hand.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import candidates_of, tensor

from dppo.methods import ROW_METHODS
from dppo.pruning import DETERMINISTIC, UNWEIGHTED
from dppo.verification.enumerate import every_way

DPPO = ROW_METHODS["dppo"]
N, T, V = 5, 4, 5
_RNG = np.random.default_rng(7)
THETA = _RNG.normal(size=(V, V))
TOKEN_NT = _RNG.integers(V, size=(N, T + 1))
LENGTH_N = torch.tensor([4, 1, 3, 2, 4])
SCORE_N = tensor([3.0, 0.4, 1.5, 0.7, 2.0])
ROWS = candidates_of(SCORE_N.tolist(), tokens=(LENGTH_N + 1.0).tolist())


def row_gradients():
    """(N, V * V) gradient of each row's summed negative log-likelihood: probabilities less the token, by hand."""
    prob, found = np.exp(THETA) / np.exp(THETA).sum(1, keepdims=True), np.zeros((N, V, V))
    for row, length in enumerate(LENGTH_N.tolist()):
        for before, token in zip(TOKEN_NT[row], TOKEN_NT[row, 1 : length + 1], strict=False):
            found[row, before] += prob[before] - np.eye(V)[token]
    return torch.from_numpy(found.reshape(N, -1))


GRADIENT_NK = row_gradients()
FULL = GRADIENT_NK.sum(0) / LENGTH_N.sum()
"""Gradient of TRL's loss over all rows: the mean over their trained tokens."""


def expectation(method, rows=ROWS, weighted=True):
    """The mean over every draw of the gradient that a step has, from the weights and the shares of the method."""

    def one(tape):
        draw = method.rows.draw(rows, tape)
        weight_N = draw.weight_N if weighted else draw.keep_N.double()
        return (weight_N * method.shares(draw, LENGTH_N)) @ GRADIENT_NK

    ways = list(every_way(one))
    assert abs(sum(chance for _, chance in ways) - 1) < 1e-12
    return sum(chance * gradient for gradient, chance in ways)


def relative_error(found, wanted=FULL):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("name", [name for name, method in ROW_METHODS.items() if not method.over_kept])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5])
def test_the_expected_gradient_is_that_of_all_rows(name, rate):
    method = ROW_METHODS[name]
    method = replace(method, rows=method.rows.at_rate(rate))
    assert method.biases == () and relative_error(expectation(method)) < 1e-12


def test_rows_without_a_score_are_kept_and_do_not_bias():
    some, nothing = (
        replace(ROWS, seen_P=torch.tensor(seen)) for seen in ([True, False, True, True, True], [False] * 5)
    )
    assert relative_error(expectation(DPPO, some)) < 1e-12
    assert DPPO.rows.draw(nothing, None).keep_N.all(), "an epoch without scores is not pruned"


def test_wrong_twins_are_caught():
    """A mean over the tokens kept, no weights, and a choice without chance: each is another gradient."""
    kept = replace(DPPO, over_kept=True)
    assert relative_error(expectation(kept)) > 0.05 and "quotient of two random numbers" in kept.biases[0]
    assert relative_error(expectation(DPPO, weighted=False)) > 0.1
    for change, reason in (({"weighting": UNWEIGHTED}, "not weighted"), ({"design": DETERMINISTIC}, "chance")):
        wrong = replace(DPPO, rows=replace(DPPO.rows, **change))
        assert relative_error(expectation(wrong)) > 0.1 and reason in wrong.biases[0]


def test_the_authors_mean_over_what_infobatch_kept_is_biased_and_says_so():
    """By hand: of five rows those below the mean are kept half of the time, each draw a mean over its own tokens."""
    method, low_N, by_hand = ROW_METHODS["infobatch_kept"], SCORE_N.mean() > SCORE_N, torch.zeros_like(FULL)
    assert low_N.sum() == 3
    for draw, chance in every_way(lambda tape: method.rows.draw(ROWS, tape)):
        weight_N = draw.keep_N * torch.where(low_N, 1 / draw.prob_N, 1.0)
        by_hand += chance * weight_N @ GRADIENT_NK / LENGTH_N[draw.keep_N].sum()
    found = expectation(method)
    assert relative_error(found, by_hand) < 1e-12
    assert relative_error(found) > 0.05 and "biased" in method.describe() and method.biases
