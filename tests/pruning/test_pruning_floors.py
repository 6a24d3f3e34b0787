"""Floors that follow from what is lost: they bound weight times score, and cost no bias."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError, DesignError
from dppo.moment_samples import OtherTerms
from dppo.pruning import (
    Budget,
    Pruning,
    advantage_with_length,
    advantage_with_uncertainty,
    proportional,
)
from dppo.rng import Purpose, generator
from dppo.types import Completions

EXACT = 1e-12
ADVANTAGE = torch.tensor([0.0, 1.2, 0.0, -0.8, 0.0, 0.0], dtype=torch.float64)
ROWS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2, 6]),
    group_N=torch.tensor([0, 1, 0, 1, 2, 2]),
    live_N=torch.ones(6, dtype=torch.bool),
    uncertainty_N=torch.tensor([0.1, 0.9, 0.6, 0.5, 0.3, 1.1], dtype=torch.float64),
    beta=0.1,
    other=0.2,
)
LEVEL = Pruning(rate=0.6, floor=0.2, least=0.05, score=advantage_with_uncertainty)


def test_the_floor_of_a_mean_score_is_the_floor_and_that_of_none_the_least():
    score, cost = np.array([0.0, 0.5, 1.0, 2.5]), np.ones(4)  # the mean is 1
    floors = Budget(rate=0.5, floor=0.2, least=0.02).floors(score, cost)
    np.testing.assert_allclose(floors, [0.02, 0.11, 0.2, 0.47], rtol=0, atol=EXACT)
    assert floors.mean() == pytest.approx(0.2, abs=EXACT), "so a rate has room for it where it has for one floor"
    weighed = Budget(rate=0.5, floor=0.2, least=0.02).floors(score, np.array([1.0, 0, 1, 0]))  # the mean is a half
    assert weighed[1] == pytest.approx(0.2, abs=EXACT) and weighed[3] == pytest.approx(0.92, abs=EXACT)
    assert (Budget(rate=0.5, floor=0.2, least=0.02).floors(np.zeros(4), cost) == 0.02).all()
    tiny = Budget(rate=0.5, floor=0.2, least=0.02).floors(np.array([0.0, 1e-310]), np.ones(2))
    assert tiny[0] == 0.02 and tiny[1] == pytest.approx(0.38, abs=1e-3), "no division leaves what can be written"
    assert (Budget(rate=0.5, floor=0.2).floors(score, cost) == 0.2).all()


@pytest.mark.parametrize("budget", ["rows", "tokens"])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8])
def test_no_weight_and_no_weight_times_score_is_above_its_bound(rate, budget):
    rng = torch.Generator().manual_seed(1)
    score = torch.rand(200, generator=rng, dtype=torch.float64) ** 8
    score[:150] = 0.0
    cost = torch.rand(200, generator=rng, dtype=torch.float64) * 30 + 1 if budget == "tokens" else None
    within = Budget(rate=rate, floor=0.2, least=0.02, cost_N=cost)
    weight = proportional(score, within).reciprocal()
    mean = score.mean() if cost is None else (cost * score).sum() / cost.sum()
    assert weight.max() <= 50 * (1 + EXACT)
    assert (weight * score).max() <= max(float(mean) / 0.18, float(score.max())) * (1 + EXACT)
    spent = 1 / weight if cost is None else cost / weight
    total = len(score) if cost is None else cost.sum()
    assert float(spent.sum() / total) == pytest.approx(1 - rate, abs=1e-9)
    assert weight[:150].min() > 4 or rate < 0.7, "what has nothing to lose gives way first"


def test_a_term_whose_size_is_not_known_keeps_one_floor_for_all():
    unknown = replace(ROWS, other=None)
    assert LEVEL.informed(ROWS).least == 0.05 and LEVEL.informed(unknown).least is None
    assert LEVEL.draw(unknown, generator(0, Purpose.CHECK)).prob_N.min() == pytest.approx(0.2)
    assert LEVEL.draw(ROWS, generator(0, Purpose.CHECK)).prob_N.min() < 0.2


@pytest.mark.parametrize("score", [advantage_with_uncertainty, advantage_with_length])
def test_scores_hold_what_other_terms_weigh(score):
    blind, known = score(replace(ROWS, other=0.0)), score(ROWS)
    assert (blind[ADVANTAGE == 0] == 0).all() and (known > 0).all()
    unit = score(replace(ROWS, advantage_N=torch.ones(6), other=0.0))
    torch.testing.assert_close(known**2, blind**2 + (0.2 * unit) ** 2, rtol=1e-12, atol=0)
    assert torch.equal(score(replace(ROWS, other=None)), blind)


def test_what_other_terms_weighed_is_a_faded_mean_that_ignores_what_is_not_finite():
    found = OtherTerms().after(8.0, 2.0)
    assert found.advantage == 2.0 and OtherTerms().advantage is None
    assert found.after(float("inf"), 1.0) == found.after(1.0, 0.0) == found.after(float("nan"), 1.0) == found
    later = found.after(0.0, 2.0)
    assert later.advantage == pytest.approx((6.4 / 3.6) ** 0.5, rel=1e-3)


def test_impossible_floors_are_refused():
    with refused(ConfigError, "least=1.5"):
        Pruning(rate=0.5, least=1.5)
    with refused(ConfigError, "least=0.3"):
        Budget(rate=0.5, floor=0.2, least=0.3)
    with refused(DesignError, "floor=0.6", "rate=0.5 keeps", "floor=0.25"):  # also where some may be below the floor
        Budget(rate=0.5, floor=0.6, least=0.1)
