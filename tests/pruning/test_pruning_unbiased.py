"""E[sum over kept of f / prob] is the sum over all, exactly; and every wrong way to do it is caught."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pruning_enumeration import all_masks, distribution, every_coin, expectation, outcomes

from dppo.pruning import (
    BIASED_RULES,
    BIASED_WEIGHTINGS,
    DESIGNS,
    DETERMINISTIC,
    PIVOTAL,
    POISSON,
    RULES,
    SYSTEMATIC,
    WEIGHTINGS,
    Pruning,
    kept_mean,
    largest,
    threshold,
    uniform,
    unweighted,
)
from dppo.rng import Purpose, generator
from dppo.types import Candidates, Completions

EXACT = 1e-12
PROB = torch.tensor([0.2, 0.5, 0.9, 0.65, 0.75], dtype=torch.float64)  # sums to 3
VALUE = torch.tensor([[2.0, -1], [0.3, 4], [1, 1], [-5, 0.5], [0.1, 3]], dtype=torch.float64)
UNBIASED = [PIVOTAL, SYSTEMATIC, POISSON]


def mean(design, estimate) -> torch.Tensor:
    pairs = all_masks(PROB) if design is POISSON else distribution(design, PROB)
    return expectation(pairs, estimate)


def weighted(keep: torch.Tensor) -> torch.Tensor:
    return ((keep / PROB)[:, None] * VALUE).sum(0)


@pytest.mark.parametrize("design", UNBIASED, ids=lambda d: d.name)
def test_one_over_the_probability_is_unbiased(design):
    torch.testing.assert_close(mean(design, weighted), VALUE.sum(0), rtol=0, atol=EXACT * 10)


SURVIVORS = {
    "weights forgotten": (lambda keep: (keep[:, None] * VALUE).sum(0), UNBIASED),
    "divided by the survivors": (lambda keep: 5 * (keep[:, None] * VALUE).sum(0) / max(keep.sum().item(), 1), UNBIASED),
    "divided by the sum of weights (Hajek)": (
        lambda keep: 5 * weighted(keep) / max((keep / PROB).sum().item(), 1e-9),
        UNBIASED,
    ),
    "a constant instead of the size, size random": (lambda keep: 3 * weighted(keep) / max(keep.sum(), 1), [POISSON]),
}
"""Estimates of the sum over 5 rows, and the designs under which each is wrong."""


@pytest.mark.parametrize(("estimate", "designs"), SURVIVORS.values(), ids=SURVIVORS)
def test_the_check_above_catches_wrong_estimates(estimate, designs):
    for design in designs:
        assert (mean(design, estimate) - VALUE.sum(0)).abs().max() > 0.05


@pytest.mark.parametrize("design", [PIVOTAL, SYSTEMATIC], ids=lambda d: d.name)
def test_a_constant_size_may_stand_for_the_size_if_the_size_is_fixed(design):
    estimate = SURVIVORS["a constant instead of the size, size random"][0]
    torch.testing.assert_close(mean(design, estimate), VALUE.sum(0), rtol=0, atol=EXACT * 10)


def test_no_rescaling_repairs_a_deterministic_rule():
    ((keep, chance),) = distribution(DETERMINISTIC, PROB, PROB)
    assert chance == 1
    kept = (keep[:, None] * VALUE).sum(0)
    scale = (kept @ VALUE.sum(0)) / kept.square().sum()  # the best one, chosen with hindsight
    for factor in (1.0, 5 / 3, scale):
        assert (factor * kept - VALUE.sum(0)).abs().max() > 0.5


def refill_factor(wanted: int, prob: float) -> float:
    """Mean of the estimate of 1 = mean(1) when rows are drawn until ``wanted`` are kept: a negative binomial sum."""
    count = np.arange(wanted, 60 * wanted)
    log_chance = [
        math.lgamma(n) - math.lgamma(wanted) - math.lgamma(n - wanted + 1) + (n - wanted) * math.log(1 - prob)
        for n in count.tolist()
    ]
    chance = np.exp(np.array(log_chance) + wanted * math.log(prob))
    assert chance.sum() == pytest.approx(1.0, abs=1e-9)
    return float((chance * wanted / prob / count).sum())


def test_drawing_until_enough_are_kept_is_biased_upwards():
    assert refill_factor(4, 0.5) == pytest.approx(1.12, abs=0.01)
    assert refill_factor(64, 0.5) == pytest.approx(1.008, abs=0.001)


def completions(rows: int = 6) -> Completions:
    advantage = torch.tensor([1.5, -0.5, -0.5, 0.0, 2.0, -0.7], dtype=torch.float64)[:rows]
    return Completions(
        advantage_N=advantage,
        tokens_N=torch.tensor([5, 1, 8, 3, 2, 9])[:rows],
        group_N=torch.tensor([0, 0, 0, 1, 1, 1])[:rows],
        live_N=advantage != 0,
    )


def mean_weight(pruning: Pruning, rows: Completions) -> torch.Tensor:
    """Exact E[weight] of each completion through ``draw_completions``."""
    prob = pruning.draw_completions(rows, generator(0)).prob_N
    sides = np.lexsort((rows.advantage_N.sign().numpy(), rows.group_N.numpy()))
    pairs = outcomes(pruning.design.name, lambda rng: pruning.draw_completions(rows, rng), prob[sides])
    total = torch.zeros(len(prob), dtype=torch.float64)
    for draw, chance in pairs:
        total += chance * draw.weight_N
    return total


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("budget", ["rows", "tokens"])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_a_pruning_that_states_no_bias_has_none(rule, design, weighting, budget, rate):
    pruning = Pruning(rate=rate, rule=rule, design=design, weighting=weighting, budget=budget)
    rows = completions()
    gap = (mean_weight(pruning, rows) - rows.live_N.double()).abs().max().item()
    if not pruning.bias:
        assert gap < EXACT
    if rate == 0:
        assert not pruning.bias


BIASED = [
    *(Pruning(rate=0.4, rule=rule, design=design) for rule in BIASED_RULES for design in DESIGNS.values()),
    *(Pruning(rate=0.4, rule=rule, design=DETERMINISTIC) for rule in (threshold, uniform)),
    *(Pruning(rate=0.4, weighting=weighting, design=d) for weighting in BIASED_WEIGHTINGS for d in UNBIASED),
]


@pytest.mark.parametrize("pruning", BIASED, ids=lambda p: f"{p.rule.__name__}-{p.design.name}-{p.weighting.__name__}")
def test_what_is_declared_biased_is_biased(pruning):
    rows = completions()
    assert pruning.bias
    assert (mean_weight(pruning, rows) - rows.live_N.double()).abs().max() > 0.01


def test_each_bias_is_named():
    both = Pruning(rate=0.5, rule=largest, design=DETERMINISTIC, weighting=kept_mean).bias
    assert "largest" in both and "deterministic" in both and "kept_mean" in both
    assert "unweighted" in Pruning(rate=0.5, weighting=unweighted).bias
    assert Pruning(rate=0.5).bias == ""


def candidates(signal, seen) -> Candidates:
    size = len(signal)
    return Candidates(
        row_P=torch.arange(size),
        signal_P=torch.tensor(signal, dtype=torch.float64),
        tokens_P=torch.full((size,), 10.0, dtype=torch.float64),
        seen_P=torch.tensor(seen),
    )


def two_levels(combine) -> torch.Tensor:
    """Exact E[combined weight] of the 4 x 3 completions of 4 prompts: prompts first, then completions of those kept."""
    block = candidates([0.1, 2.0, 1.0, 0.5], [True, True, True, False])
    advantage = torch.tensor([[1.0, -0.5, -0.5], [2, -1, -1], [0, 0, 0], [0.3, 0.3, -0.6]], dtype=torch.float64)
    prompts, rows = Pruning(rate=0.4), Pruning(rate=0.5, floor=0.2)
    total = torch.zeros(4, 3, dtype=torch.float64)
    for outer, outer_chance in every_coin(lambda rng: prompts.draw_prompts(block, rng)):
        kept = outer.keep_N.nonzero().squeeze(1)
        rolled = Completions(
            advantage_N=advantage[kept].flatten(),
            tokens_N=torch.ones(3 * len(kept)),
            group_N=kept.repeat_interleave(3),
            live_N=advantage[kept].flatten() != 0,
        )
        for inner, inner_chance in every_coin(lambda rng, rolled=rolled: rows.draw_completions(rolled, rng)):
            weight = combine(outer.weight_N[kept][:, None], inner.weight_N.view(-1, 3))
            total[kept] += outer_chance * inner_chance * weight
    live = advantage != 0
    return (total - live.double()).abs()[live]


def test_weights_of_two_levels_multiply():
    assert two_levels(lambda prompt, row: prompt * row).max() < EXACT


@pytest.mark.parametrize(
    "wrong",
    [
        lambda prompt, row: row,
        lambda prompt, row: prompt * (row > 0),
        lambda prompt, row: (prompt + row - 1) * (row > 0),
    ],
    ids=["prompt weight forgotten", "completion weight forgotten", "added instead of multiplied"],
)
def test_no_other_combination_is_unbiased(wrong):
    assert two_levels(wrong).max() > 0.05


def spread_by_draws(pruning: Pruning) -> list[float]:
    """Root mean square error of the mean of 1, 4, 16, 64 draws, over 4,096 draws of the same 64 completions."""
    source = torch.Generator().manual_seed(3)
    advantage = torch.randn(64, generator=source, dtype=torch.float64)
    rows = Completions(
        advantage_N=advantage,
        tokens_N=torch.ones(64),
        group_N=torch.arange(64) // 8,
        live_N=torch.ones(64, dtype=torch.bool),
    )
    gradient = torch.randn(64, 5, generator=source, dtype=torch.float64) * advantage[:, None]
    rng = generator(4, Purpose.CHECK)
    draws = torch.stack([pruning.draw_completions(rows, rng).weight_N @ gradient for _ in range(4096)])
    error = [draws.view(-1, count, 5).mean(1) - gradient.sum(0) for count in (1, 4, 16, 64)]
    return [e.square().sum(1).mean().sqrt().item() for e in error]


def order(errors: list[float]) -> float:
    return float(np.polyfit(np.log([1, 4, 16, 64]), np.log(errors), 1)[0])


@pytest.mark.parametrize("rule", [threshold, uniform, Pruning().rule], ids=lambda rule: rule.__name__)
def test_the_error_shrinks_with_the_root_of_the_number_of_draws(rule):
    """64 averages of 64 draws fix the last error to 9% / sqrt(5), the slope to 0.02: 0.06 is three of these."""
    assert order(spread_by_draws(Pruning(rate=0.5, rule=rule))) == pytest.approx(-0.5, abs=0.06)


def test_a_biased_error_does_not_shrink_like_that():
    errors = spread_by_draws(replace(Pruning(rate=0.5), weighting=unweighted))
    assert order(errors) > -0.3
