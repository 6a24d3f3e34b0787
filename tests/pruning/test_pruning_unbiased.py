"""Exact distributions of draws: designs are what they claim, and mean weights are 1 where no bias is declared."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from arrays import candidates_of, tensor
from pruning_enumeration import TOP, Numbers, boxes_of, boxes_of_level, mean_weight

from dppo.moment_samples import MomentSamples
from dppo.pruning import RULES, Auto, PromptPruning, Pruning, advantage_with_uncertainty, uniform
from dppo.pruning.designs import DESIGNS, KEPT_MEAN, PIVOTAL, POISSON, SYSTEMATIC, WEIGHTINGS, relative_added_variance
from dppo.rng import Purpose, generator
from dppo.types import Completions

EXACT = 1e-12
PROBABILITIES = {
    "sum is an integer": [0.5, 0.25, 0.75, 0.9, 0.6],
    "sum is not an integer": [0.3, 0.55, 0.2, 0.7],
    "certain rows": [1.0, 0.4, 0.0, 0.6, 1.0],
    "everything certain": [1.0, 0.0, 1.0],
    "one row": [0.3],
    "no rows": [],
    "equal thirds": [1 / 3, 1 / 3, 1 / 3],
    "very small": [1e-6, 0.5, 0.499999],
    "near one": [1 - 1e-8, 0.5, 1 - 1e-8, 0.5],
    "an integer but for rounding": [0.7, 0.1, 0.2],
}


def whole_sizes(prob: torch.Tensor) -> set[int]:
    total = math.fsum(prob.tolist())
    near = round(total)
    return {near} if abs(total - near) < 1e-9 else {math.floor(total), math.ceil(total)}


def outcomes(design, prob: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, N) what every box of a draw keeps, and (M,) its chance."""
    boxes = boxes_of(design, prob, prob)
    return torch.tensor([box.result for box in boxes]).bool(), tensor([box.chance for box in boxes])


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_every_claim_of_a_design_is_true_and_what_it_does_not_claim_is_false(design):
    worst, fixed = 0.0, True
    for name, values in PROBABILITIES.items():
        prob = tensor(values)
        drawn = design.draw(prob, prob, generator(0, Purpose.CHECK))
        assert drawn.shape == prob.shape and drawn.dtype == torch.bool, name
        keep_MN, chance_M = outcomes(design, prob)
        assert chance_M.sum().item() == pytest.approx(1.0, abs=EXACT), name
        assert keep_MN[:, prob >= 1].all() and not keep_MN[:, prob <= 0].any(), name
        worst = max([worst, *(chance_M @ keep_MN.double() - prob).abs().tolist()])
        fixed &= set(keep_MN[chance_M > 1e-15].sum(1).tolist()) <= whole_sizes(prob)
    assert (worst < EXACT, fixed) == (design.unbiased, design.fixed_size)
    assert bool(design.reason) == (not design.unbiased)


AWKWARD = {
    "tenths": np.full(1000, 1 - 0.9),
    "thirds": np.full(999, 1 / 3),
    "mixed": np.concatenate([np.full(700, 0.07), np.full(100, 0.51)]),
    "few tenths": np.full(10, 0.1),
    "seven, one, two": np.array([0.7, 0.1, 0.2]),
    "summed downwards": np.random.default_rng(5).dirichlet(np.ones(5000)) * 32,
}


@pytest.mark.parametrize("design", [d for d in DESIGNS.values() if d.fixed_size], ids=lambda d: d.name)
@pytest.mark.parametrize("prob", AWKWARD.values(), ids=AWKWARD)
def test_an_integer_sum_is_met_in_spite_of_rounding(design, prob):
    prob_N = torch.from_numpy(prob.clip(max=1.0))
    (total,) = whole_sizes(prob_N)
    for number in (0.0, 0.5, TOP):  # rounding decides at the ends
        assert design.draw(prob_N, prob_N, Numbers([number] * (len(prob) + 1))).sum() == total


def test_relative_added_variance_is_exact_for_gradients_at_right_angles():
    prob, norm = tensor([0.5, 0.25, 1.0, 0.8]), tensor([1.0, 0.5, 2.0, 1.5])
    keep_MN, chance_M = outcomes(POISSON, prob)
    added = chance_M @ ((keep_MN / prob - 1) * norm).square().sum(1)
    exact = added.item() / norm.square().sum().item()
    assert relative_added_variance(prob, norm) == pytest.approx(exact, rel=1e-12)
    without_squares = ((1 / prob - 1) * norm).sum() / norm.sum()
    assert abs(without_squares - exact) > 0.05


ADVANTAGE = tensor([1.5, -0.5, -0.5, 0.0, 2.0])
COMPLETIONS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2]),
    group_N=torch.tensor([0, 0, 0, 1, 1]),
    live_N=ADVANTAGE != 0,
)
LIVE = COMPLETIONS.live_N.double()
CANDIDATES = candidates_of([0.1, 2.0, 1.0, 0.5, 0.4], tokens=[9, 5, 10, 20, 8], seen=[True, True, True, False, True])
LEVELS = {"completions": (Pruning, COMPLETIONS, LIVE), "prompts": (PromptPruning, CANDIDATES, torch.ones(5))}
"""What draws, from what, and the mean weight that is right."""


def gap(level, rows, wanted_N) -> float:
    """Largest gap between the exact mean of a weight and what it should be."""
    return (mean_weight(level, rows) - wanted_N).abs().max().item()


@pytest.mark.parametrize(("kind", "rows", "wanted_N"), LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("budget", ["rows", "tokens"])
def test_a_pruning_is_biased_exactly_where_it_says_so(kind, rows, wanted_N, rule, design, weighting, budget):
    level = kind(rate=0.4, rule=rule, design=design, weighting=weighting, budget=budget)
    if not level.bias:
        assert gap(level, rows, wanted_N) < EXACT
    elif not (rule is uniform and weighting is KEPT_MEAN):  # a mean over rows that are all as likely can be right
        assert gap(level, rows, wanted_N) > 0.01
    off = replace(level, rate=0.0)
    assert gap(off, rows, wanted_N) == 0 and not off.bias


ROWS = Completions(
    advantage_N=tensor([0.0, 1.2, 0.0, -0.8, 0.0, 0.0]),
    tokens_N=torch.tensor([5, 1, 8, 3, 2, 6]),
    group_N=torch.tensor([0, 1, 0, 1, 2, 2]),
    live_N=torch.ones(6, dtype=torch.bool),
    uncertainty_N=tensor([0.1, 0.9, 0.6, 0.5, 0.3, 1.1]),
    beta=0.1,
    other=0.2,
)
"""Completions most of which lose nothing but their part of a KL term."""
FLOORS = Pruning(rate=0.6, floor=0.2, least=0.05, score=advantage_with_uncertainty)


@pytest.mark.parametrize("design", [PIVOTAL, SYSTEMATIC], ids=lambda design: design.name)
@pytest.mark.parametrize("budget", ["rows", "tokens"])
def test_floors_by_score_are_unbiased_and_the_same_bound_applied_to_weights_after_the_draw_is_not(design, budget):
    """The wrong twin is where a bound would be cheapest to write: completions asked seldom count less."""
    level = replace(FLOORS, design=design, budget=budget)
    prob_N = level.draw(ROWS, generator(0, Purpose.CHECK)).prob_N
    assert prob_N.min() < 0.1 < 0.2 < prob_N[1], "asked seldom, where nothing is lost"
    assert gap(level, ROWS, torch.ones(6)) < EXACT
    clipped = mean_weight(level, ROWS, lambda draw: draw.weight_N.clamp(max=5.0))
    assert (clipped - 1).abs().max() > 0.1


@pytest.mark.parametrize("budget", ["rows", "tokens"])
@pytest.mark.parametrize("group", [[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]], ids=str)
def test_a_rate_chosen_before_the_draw_is_unbiased(group, budget):
    """Rates come from scores, and for prompts from visits, half of which had a hundredth of the others' moment."""
    rows, auto = replace(COMPLETIONS, group_N=torch.tensor(group)), Auto(fewest=1, least_gain=1.0)
    level = Pruning(rate=0.8, floor=0.2, auto=auto, budget=budget)
    assert level.choice(level.samples(rows)).rate > 0
    assert len(boxes_of_level(level, rows)) > 1 and gap(level, rows, LIVE) < EXACT
    visits = MomentSamples.known(tensor([0.01, 1]).repeat_interleave(200), torch.ones(400))
    prompts = PromptPruning(rate=0.8, floor=0.2, auto=Auto(), budget=budget).at_chosen_rate(visits)
    assert prompts.rate == 0.4 and len(boxes_of_level(prompts, CANDIDATES)) > 1
    assert gap(prompts, CANDIDATES, torch.ones(5)) < EXACT


def test_a_rate_chosen_after_looking_at_the_draw_is_biased():
    """The wrong twin: draw at two rates, and take the one that came out cheaper, or with the smaller weights."""
    levels = Pruning(rate=0.2, floor=0.2), Pruning(rate=0.5, floor=0.2)

    def draws(level):
        return [(box.chance, level.draw(COMPLETIONS, box.rng())) for box in boxes_of_level(level, COMPLETIONS)]

    def cheaper(draw):
        return float(COMPLETIONS.tokens_N[draw.keep_N].sum())

    def of_smaller_weights(draw):
        return float(draw.weight_N.max())

    for look in (cheaper, of_smaller_weights):
        total = sum(p * q * min(one, two, key=look).weight_N for (p, one), (q, two) in product(*map(draws, levels)))
        assert (total - LIVE).abs().max() > 0.01
