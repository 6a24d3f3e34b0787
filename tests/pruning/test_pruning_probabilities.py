"""Inclusion probabilities: budgets, bounds, optimality, and floors that follow from what is lost."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from arrays import tensor
from hypothesis import given
from hypothesis import strategies as st

from dppo.pruning import Budget, proportional, threshold
from dppo.pruning.probabilities import inclusion_probabilities

SIZES = st.one_of(st.floats(0, 10), st.sampled_from([0.0, 1.0, 1.0, 5e-324, 1e-308, 1e-30, 1e30, 1e300]))
COSTS = st.sampled_from([1.0, 1.0, 2.0, 7.0, 1000.0, 0.01])
ROWS = st.lists(st.tuples(SIZES, COSTS), min_size=1, max_size=12)


def solve(rows, share: float, floor: float):
    """(size, cost, budget, prob) for a budget ``share`` of the way from the floor to everything."""
    size, cost = tensor(rows).T
    budget = (floor + (1 - floor) * share) * cost.sum().item()
    return size, cost, budget, inclusion_probabilities(size, budget, floor=floor, cost_N=cost)


def variance(size: torch.Tensor, prob: torch.Tensor) -> float:
    return (size.square() / prob).sum().item()


@given(rows=ROWS, share=st.floats(0, 1), floor=st.floats(0.01, 1))
def test_budget_and_bounds(rows, share, floor):
    _, cost, budget, prob = solve(rows, share, floor)
    assert prob.dtype == torch.float64
    assert (prob >= floor).all() and (prob <= 1).all()
    assert (prob * cost).sum().item() == pytest.approx(budget, rel=1e-12)


def test_large_budgets_are_met_to_the_last_row():
    """Designs take a sum within 1e-9 of an integer as that integer, also for a sum of 65,536 rows."""
    spread = torch.logspace(-12, 3, 65_536, dtype=torch.float64)
    outlier = torch.cat([tensor([1e300]), torch.rand(65_535, generator=torch.Generator().manual_seed(0)).double() + 1])
    for size in (spread, outlier):
        assert abs(inclusion_probabilities(size, 32_768, floor=1e-3).sum().item() - 32_768) < 1e-10


@given(
    rows=st.lists(st.tuples(st.floats(0, 1e3), COSTS), min_size=2, max_size=10),
    share=st.floats(0.05, 0.95),
    floor=st.floats(0.02, 0.9),
    step=st.sampled_from([1.0, 0.3, 0.01]),
    seed=st.integers(0, 1000),
)
def test_no_other_probabilities_of_that_cost_have_less_variance(rows, share, floor, step, seed):
    size, cost, budget, prob = solve(rows, share, floor)
    noise = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    other = prob + step * (inclusion_probabilities(noise, budget, floor=floor, cost_N=cost) - prob)
    assert (other * cost).sum().item() == pytest.approx(budget, rel=1e-9)
    assert variance(size, prob) <= variance(size, other) * (1 + 1e-9)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_the_check_above_can_fail(power):
    size = tensor([1, 2, 3, 4])
    wrong = inclusion_probabilities(size**power, 2.0, floor=0.1)
    assert variance(size, wrong) > variance(size, inclusion_probabilities(size, 2.0, floor=0.1)) * 1.01


@given(
    scores=st.lists(st.floats(0, 10) | st.sampled_from([0.1, 0.3, 1e-320, 1e308]), min_size=1, max_size=30),
    rate=st.floats(0.01, 0.9),
)
def test_threshold_is_one_or_one_minus_rate(scores, rate):
    prob = threshold(tensor(scores), Budget(rate=rate))
    assert ((prob == 1) | (prob == 1 - rate)).all()
    exact_mean = sum(map(Fraction, scores)) / len(scores)
    for value, p in zip(scores, prob.tolist(), strict=True):
        assert p == 1 or Fraction(value) < exact_mean
        assert p < 1 or Fraction(value) >= exact_mean * (1 - Fraction(2, 10**6))


def test_the_floor_of_a_mean_score_is_the_floor_and_that_of_none_the_least():
    score, cost, budget = np.array([0.0, 0.5, 1.0, 2.5]), np.ones(4), Budget(rate=0.5, floor=0.2, least=0.02)
    floors = budget.floors(score, cost)
    np.testing.assert_allclose(floors, [0.02, 0.11, 0.2, 0.47], rtol=0, atol=1e-12)
    assert floors.mean() == pytest.approx(0.2, abs=1e-12), "so a rate has room for it where it has for one floor"
    weighed = budget.floors(score, np.array([1.0, 0, 1, 0]))  # the mean is a half
    assert weighed[[1, 3]].tolist() == pytest.approx([0.2, 0.92], abs=1e-12)
    assert (budget.floors(np.zeros(4), cost) == 0.02).all()
    tiny = budget.floors(np.array([0.0, 1e-310]), np.ones(2))
    assert tiny[0] == 0.02 and tiny[1] == pytest.approx(0.38, abs=1e-3), "no division leaves what can be written"
    assert (Budget(rate=0.5, floor=0.2).floors(score, cost) == 0.2).all()


@pytest.mark.parametrize("budget", ["rows", "tokens"])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8])
def test_no_weight_and_no_weight_times_score_is_above_its_bound(rate, budget):
    rng = torch.Generator().manual_seed(1)
    score = torch.rand(200, generator=rng, dtype=torch.float64) ** 8
    score[:150] = 0.0
    cost = torch.rand(200, generator=rng, dtype=torch.float64) * 30 + 1 if budget == "tokens" else torch.ones(200)
    within = Budget(rate=rate, floor=0.2, least=0.02, cost_N=cost if budget == "tokens" else None)
    weight = proportional(score, within).reciprocal()
    mean = float((cost * score).sum() / cost.sum())
    assert weight.max() <= 50 * (1 + 1e-12)
    assert (weight * score).max() <= max(mean / 0.18, float(score.max())) * (1 + 1e-12)
    assert float((cost / weight).sum() / cost.sum()) == pytest.approx(1 - rate, abs=1e-9)
    assert weight[:150].min() > 4 or rate < 0.7, "what has nothing to lose gives way first"
