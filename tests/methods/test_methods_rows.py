"""Rows: dropping them leaves the expected gradient as it is, over the tokens of the whole step and no others."""

from dataclasses import replace

import pytest
import torch
from tiny_rows import ROWS, expectation, relative_error

from dppo.methods import ROW_METHODS
from dppo.pruning import DETERMINISTIC, UNWEIGHTED

DPPO = ROW_METHODS["dppo"]


@pytest.mark.parametrize("name", [name for name, method in ROW_METHODS.items() if not method.over_kept])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5])
def test_the_expected_gradient_is_that_of_all_rows(name, rate):
    method = ROW_METHODS[name]
    method = replace(method, rows=method.rows.at_rate(rate))
    assert method.biases == () and relative_error(expectation(method)) < 1e-12


def test_rows_without_a_score_are_kept_and_do_not_bias():
    some = replace(ROWS, seen_P=torch.tensor([True, False, True, True, True]))
    assert relative_error(expectation(DPPO, some)) < 1e-12
    nothing = replace(ROWS, seen_P=torch.zeros(5, dtype=torch.bool))
    assert DPPO.rows.draw(nothing, None).keep_N.all(), "an epoch without scores is not pruned"


def test_wrong_twins_are_caught():
    """A mean over the tokens kept, no weights, and a choice without chance: each is another gradient."""
    kept = replace(DPPO, over_kept=True)
    assert relative_error(expectation(kept)) > 0.05 and "quotient of two random numbers" in kept.biases[0]
    assert relative_error(expectation(DPPO, weighted=False)) > 0.1
    unweighted = replace(DPPO, rows=replace(DPPO.rows, weighting=UNWEIGHTED))
    assert relative_error(expectation(unweighted)) > 0.1 and "not weighted" in unweighted.biases[0]
    ranked = replace(DPPO, rows=replace(DPPO.rows, design=DETERMINISTIC))
    assert relative_error(expectation(ranked)) > 0.1 and "chance" in ranked.biases[0]
