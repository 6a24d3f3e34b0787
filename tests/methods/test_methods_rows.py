"""Rows: dropping them leaves the expected gradient as it is, over the tokens of the whole step and no others."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_rows import LENGTH_N, ROWS, expectation, relative_error

from dppo.methods import ROW_METHODS
from dppo.pruning import DETERMINISTIC, SCHEDULES, UNWEIGHTED
from dppo.rng import Purpose, generator

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


def test_the_denominator_counts_dropped_rows():
    draw = DPPO.rows.draw(ROWS, generator(0, Purpose.CHECK))
    tokens_N = torch.from_numpy(LENGTH_N)
    assert not draw.keep_N.all() and DPPO.shares(draw, tokens_N).tolist() == [1 / LENGTH_N.sum()] * len(LENGTH_N)
    kept = LENGTH_N[draw.keep_N.numpy()].sum()
    assert replace(DPPO, over_kept=True).shares(draw, tokens_N).tolist() == [1 / kept] * len(LENGTH_N)


@pytest.mark.parametrize("schedule", ["fade", "stop"])
def test_a_schedule_is_described_by_its_own_name(schedule):
    method = replace(DPPO, schedule=partial(SCHEDULES[schedule], until=0.9))
    assert f"rate by schedule {schedule}(until=0.9)" in method.describe()
