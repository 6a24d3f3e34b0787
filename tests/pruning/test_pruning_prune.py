"""Inclusion probabilities, and ``Pruning`` and ``PromptPruning``: what they check, what they keep, and how many."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from arrays import candidates_of, tensor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError, DesignError
from dppo.pruning import Budget, PromptPruning, Pruning, advantage_with_length, advantage_with_uncertainty
from dppo.pruning.designs import DESIGNS, DETERMINISTIC, PIVOTAL, POISSON, SYSTEMATIC, UNWEIGHTED
from dppo.pruning.probabilities import inclusion_probabilities, proportional, threshold, uniform
from dppo.rng import Purpose, generator
from dppo.types import Completions

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


def never_the_first(score_N, budget):
    """A rule with a hole, which no pruning with it says."""
    prob = uniform(score_N, budget)
    prob[0] = 0
    return prob


def completions(groups: int = 8, size: int = 8) -> Completions:
    source = torch.Generator().manual_seed(0)
    advantage = torch.randn(groups * size, generator=source).sub_(0.2)
    advantage[:size] = 0
    return Completions(
        advantage_N=advantage,
        tokens_N=torch.randint(1, 50, (groups * size,), generator=source),
        group_N=torch.arange(groups).repeat_interleave(size),
        live_N=advantage != 0,
    )


def rng(seed: int = 0):
    return generator(seed, Purpose.CHECK)


def test_impossible_settings_are_refused_together():
    for level in (Pruning, PromptPruning):
        with refused(ConfigError, f"{level.__name__}: 2 problems", "floor=0.5 must be in (0, 0.3]", "budget='bits'"):
            level(rate=0.7, floor=0.5, budget="bits")
        with refused(ConfigError, "rate=1", "[0, 1)"):
            level().at_rate(1.0)
    for kind in (partial(Pruning, rate=0.5), partial(Budget, rate=0.5, floor=0.2)):
        with refused(ConfigError, "least=1.5"):
            kind(least=1.5)
    with refused(DesignError, "floor=0.6", "rate=0.5 keeps", "floor=0.25"):  # also where some may be below the floor
        Budget(rate=0.5, floor=0.6, least=0.1)


@pytest.mark.parametrize("level", [Pruning, PromptPruning])
def test_another_rate_lowers_the_floor_to_half_of_what_is_kept(level):
    for rate, floor in ((0.0, 0.1), (0.8, 0.1), (0.9, 0.05), (0.95, 0.025)):
        changed = level(rate=0.5, floor=0.1, rule=uniform).at_rate(rate)
        assert (changed.rate, changed.rule) == (rate, uniform) and changed.floor == pytest.approx(floor)
    assert level(rate=0.5, floor=0.4).at_rate(0.3).floor == 0.4, "a lower rate leaves the floor that was asked for"


def test_a_term_whose_size_is_not_known_keeps_one_floor_for_all():
    level = Pruning(rate=0.6, floor=0.2, least=0.05, score=advantage_with_length)
    advantage_N, live_N = torch.tensor([0.0, 1.2, 0.0, -0.8, 0.0, 0.0]), torch.ones(6, dtype=torch.bool)
    rows = replace(completions(1, 6), advantage_N=advantage_N, live_N=live_N, beta=0.1, other=0.2)
    assert level.informed(rows).least == 0.05 and level.draw(rows, rng()).prob_N.min() < 0.2
    unknown = replace(rows, other=None)
    assert level.informed(unknown).least is None and level.draw(unknown, rng()).prob_N.min() == pytest.approx(0.2)


def test_rate_zero_keeps_every_live_row_and_no_history_every_prompt_whatever_the_parts():
    rows, unseen = completions(), candidates_of([1.0] * 7, seen=[False] * 7)
    for design in DESIGNS.values():
        off = Pruning(rate=0.0, rule=never_the_first, design=design, score=advantage_with_uncertainty)
        new = PromptPruning(rate=0.9, rule=never_the_first, design=design)
        for draw, live_N in ((off.draw(rows, rng()), rows.live_N), (new.draw(unseen, rng()), ~unseen.seen_P)):
            assert torch.equal(draw.keep_N, live_N)
            assert torch.equal(draw.weight_N, live_N.double()) and torch.equal(draw.prob_N, live_N.double())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_rows_without_a_gradient_are_never_kept_and_results_are_in_the_order_given(design):
    rows = completions()
    live, score_N = rows.live_N, advantage_with_length(rows)
    draw = Pruning(rate=0.5, design=design, score=advantage_with_length, budget="tokens").draw(rows, rng())
    expected_N = torch.zeros(len(live)).double()
    expected_N[live] = proportional(score_N[live], Budget(rate=0.5, floor=0.1, cost_N=rows.tokens_N[live].double()))
    torch.testing.assert_close(draw.prob_N, expected_N, rtol=1e-12, atol=0)
    assert not draw.keep_N[~live].any()
    torch.testing.assert_close(draw.weight_N, torch.where(draw.keep_N, 1 / draw.prob_N, 0.0), rtol=0, atol=0)


def sides_kept(pruning: Pruning, seed: int) -> set[int]:
    """Rows kept of each (group, sign) when every group has two of each sign, in a scrambled order."""
    mix, ones = torch.randperm(24, generator=torch.Generator().manual_seed(1)), torch.ones(24)
    group, advantage = torch.arange(6).repeat_interleave(4)[mix], torch.tensor([1.0, 1, -1, -1] * 6)[mix]
    rows = Completions(advantage_N=advantage, tokens_N=ones, group_N=group, live_N=ones.bool())
    side = 2 * group + (advantage > 0)
    return set(torch.bincount(side[pruning.draw(rows, rng(seed)).keep_N], minlength=12).tolist())


def test_the_pivotal_draw_takes_its_share_of_each_group_and_sign():
    assert all(sides_kept(Pruning(rate=0.5, rule=uniform), seed) == {1} for seed in range(20))
    assert any(sides_kept(Pruning(rate=0.5, rule=uniform, design=SYSTEMATIC), seed) != {1} for seed in range(20))


def test_a_row_that_can_never_be_kept_is_refused_unless_the_bias_is_declared():
    rows = completions()
    for level, units in ((Pruning, rows), (PromptPruning, candidates_of([1.0, 2, 3, 4, 5]))):
        with refused(DesignError, "1 units", "probability 0"):
            level(rate=0.5, rule=never_the_first).draw(units, rng())
    for declared in ({"design": DETERMINISTIC}, {"weighting": UNWEIGHTED}):
        draw = Pruning(rate=0.5, rule=never_the_first, **declared).draw(rows, rng())
        assert (draw.prob_N[rows.live_N] == 0).sum() == 1


@given(
    signal=st.lists(st.floats(0, 5) | st.just(0.0), min_size=1, max_size=20),
    unseen=st.integers(0, 8),
    rate=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
    multiple=st.sampled_from([1, 1, 2, 4]),
    budget=st.sampled_from(["rows", "tokens"]),
    rule=st.sampled_from([proportional, threshold, uniform]),
    design=st.sampled_from([PIVOTAL, SYSTEMATIC, DETERMINISTIC]),
)
def test_prompt_counts_are_fixed_whole_and_multiples(signal, unseen, rate, multiple, budget, rule, design):
    seen, total = len(signal), len(signal) + unseen
    tokens = [1.0 + (7 * n) % 11 for n in range(total)]
    block = candidates_of(signal + [1.0] * unseen, seen=[True] * seen + [False] * unseen, tokens=tokens)
    pruning = PromptPruning(rate=rate, floor=0.1, rule=rule, budget=budget, design=design)
    multiple = 1 if total % multiple else multiple
    draws = [pruning.draw(block, rng(seed), multiple=multiple) for seed in range(3)]
    (count,) = {int(draw.keep_N.sum()) for draw in draws}
    assert count % multiple == 0 and 1 <= count <= total
    assert draws[0].prob_N.sum().item() == pytest.approx(count, abs=1e-9)
    assert all(draw.keep_N[seen:].all() and (draw.prob_N[seen:] == 1).all() for draw in draws)
    assert draws[0].prob_N.min() >= 0.1 - 1e-9
    if rule is uniform or (rule is proportional and budget == "rows"):
        lowest = max(round((1 - rate) * seen) + unseen, 1)
        assert lowest <= count < lowest + multiple + 1


def test_counts_that_cannot_be_are_refused():
    for rate in (0.0, 0.1):
        with refused(DesignError, "multiple of 4", "the block has 6"):
            PromptPruning(rate=rate).draw(candidates_of([1.0] * 6), rng(), multiple=4)
    with refused(DesignError, "'poisson'"):
        PromptPruning(rate=0.5, design=POISSON).draw(candidates_of([1.0] * 8), rng(), multiple=4)
    with refused(DesignError, "1 of 20"):
        PromptPruning(rate=0.5).at_total(candidates_of([1.0] * 20), 1)
