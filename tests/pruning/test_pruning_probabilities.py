"""Inclusion probabilities: budgets, bounds, optimality, and the rules built on them."""

from fractions import Fraction

import pytest
import torch
from arrays import tensor
from hypothesis import given
from hypothesis import strategies as st

from dppo.pruning import RULES, Budget, threshold
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


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_every_rule_keeps_its_promises(rule, rate):
    score = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    floor = min(0.1, 1 - rate)
    prob = rule(score, Budget(rate=rate, floor=floor))
    assert prob.dtype == torch.float64 and prob.shape == (40,)
    assert (prob <= 1).all() and (prob >= floor - 1e-15).all()
    assert rule(torch.zeros(0), Budget(rate=rate, floor=floor)).shape == (0,)
    if rate == 0:
        assert (prob == 1).all()
    more, fewer = (rule(score, Budget(rate=r, floor=0.01)).sum() for r in (rate, min(rate + 0.05, 0.99)))
    assert fewer <= more + 1e-9, "the sum does not grow with the rate"
    if rule is not threshold:
        assert prob.sum().item() == pytest.approx(40 * (1 - rate), abs=1e-9)


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
