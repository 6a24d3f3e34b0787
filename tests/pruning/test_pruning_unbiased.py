"""E[sum over kept of f / prob] is the sum over all, exactly; and every wrong way to do it is caught."""

import numpy as np
import pytest
import torch
from pruning_enumeration import all_masks, boxes_of_level, distribution, expectation

from dppo.pruning import (
    DESIGNS,
    DETERMINISTIC,
    KEPT_MEAN,
    PIVOTAL,
    POISSON,
    RULES,
    SYSTEMATIC,
    UNWEIGHTED,
    WEIGHTINGS,
    PromptPruning,
    Pruning,
    proportional,
    uniform,
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


# Through ``draw``, for real rows. Boxes are found for the design; here the whole level draws with their numbers.

ADVANTAGE = torch.tensor([1.5, -0.5, -0.5, 0.0, 2.0], dtype=torch.float64)
COMPLETIONS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2]),
    group_N=torch.tensor([0, 0, 0, 1, 1]),
    live_N=ADVANTAGE != 0,
)
CANDIDATES = Candidates(
    row_P=torch.arange(5),
    signal_P=torch.tensor([0.1, 2.0, 1.0, 0.5, 0.4], dtype=torch.float64),
    tokens_P=torch.tensor([9.0, 5.0, 10.0, 20.0, 8.0], dtype=torch.float64),
    seen_P=torch.tensor([True, True, True, False, True]),
)
LEVELS = {
    "completions": (Pruning, COMPLETIONS, COMPLETIONS.live_N.double()),
    "prompts": (PromptPruning, CANDIDATES, torch.ones(5, dtype=torch.float64)),
}
"""What draws, from what, and the mean weight that is right."""


def worst_gap(level: str, **settings) -> float:
    """Largest gap between the exact mean of a weight and what it should be."""
    kind, rows, wanted = LEVELS[level]
    pruning = kind(**settings)
    total = sum(box.chance * pruning.draw(rows, box.rng()).weight_N for box in boxes_of_level(pruning, rows))
    return (total - wanted).abs().max().item()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("budget", ["rows", "tokens"])
def test_a_pruning_is_biased_exactly_where_it_says_so(level, rule, design, weighting, budget):
    settings = {"rule": rule, "design": design, "weighting": weighting, "budget": budget}
    gap = worst_gap(level, rate=0.4, **settings)
    if not LEVELS[level][0](rate=0.4, **settings).bias:
        assert gap < EXACT
    elif not (rule is uniform and weighting is KEPT_MEAN):  # a mean over rows that are all as likely can be right
        assert gap > 0.01
    assert worst_gap(level, rate=0.0, **settings) == 0 and not LEVELS[level][0](rate=0.0, **settings).bias


def test_each_bias_is_named():
    for kind in (Pruning, PromptPruning):
        for name, weighting in WEIGHTINGS.items():
            bias = kind(rate=0.5, design=DETERMINISTIC, weighting=weighting).bias
            assert "deterministic" in bias and (name in bias) == (name != "inverse_probability")
        assert kind(rate=0.5).bias == ""


def two_levels(combine) -> torch.Tensor:
    """Error of E[combined weight] of 4 x 2 completions: prompts first, then completions of those kept."""
    block = Candidates(
        row_P=torch.arange(4),
        signal_P=torch.tensor([0.1, 2.0, 1.0, 0.5], dtype=torch.float64),
        tokens_P=torch.full((4,), 10.0, dtype=torch.float64),
        seen_P=torch.tensor([True, True, True, False]),
    )
    advantage = torch.tensor([[1.0, -0.5], [2, -1], [0, 0], [0.3, -0.6]], dtype=torch.float64)
    prompts, rows = PromptPruning(rate=0.4), Pruning(rate=0.5, floor=0.2)
    total = torch.zeros(4, 2, dtype=torch.float64)
    for outer in boxes_of_level(prompts, block):
        first = prompts.draw(block, outer.rng())
        kept = first.keep_N.nonzero().squeeze(1)
        rolled = Completions(
            advantage_N=advantage[kept].flatten(),
            tokens_N=torch.ones(2 * len(kept)),
            group_N=kept.repeat_interleave(2),
            live_N=advantage[kept].flatten() != 0,
        )
        for inner in boxes_of_level(rows, rolled):
            second = rows.draw(rolled, inner.rng())
            weight = combine(first.weight_N[kept][:, None], second.weight_N.view(-1, 2))
            total[kept] += outer.chance * inner.chance * weight
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


# Many draws: the error shrinks.

COUNTS = (1, 4, 16, 64)


def order_of_the_error(pruning: Pruning) -> float:
    """Slope of the log error of the mean of 1, 4, 16, 64 draws, over 4,096 draws of the same 64 completions."""
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
    draws = torch.stack([pruning.draw(rows, rng).weight_N @ gradient for _ in range(4096)])
    error = [draws.view(-1, count, 5).mean(1) - gradient.sum(0) for count in COUNTS]
    return float(np.polyfit(np.log(COUNTS), [e.square().sum(1).mean().log().item() / 2 for e in error], 1)[0])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_error_shrinks_with_the_root_of_the_number_of_draws(rule):
    """64 averages of 64 draws fix the last error to 9% / sqrt(5), the slope to 0.02: 0.06 is three of these."""
    assert order_of_the_error(Pruning(rate=0.5, rule=rule)) == pytest.approx(-0.5, abs=0.06)


def test_a_biased_error_does_not_shrink_like_that():
    assert order_of_the_error(Pruning(rate=0.5, rule=proportional, weighting=UNWEIGHTED)) > -0.3
