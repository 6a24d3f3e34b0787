"""What tokens cost: seconds come in as values, are fixed once, and are read back bit by bit."""

from dataclasses import asdict

import pytest
from refusals import refused

from dppo.errors import CheckpointError
from dppo.evidence import MEASURED, TokenCosts


def told(generations, seconds=(3.0, 1.0, 2.0), tokens=(100, 50, 50)):
    costs = TokenCosts()
    for number in range(generations):
        costs = costs.after((1000.0, 1000.0, 1.0) if number == 0 else seconds, tokens)
    return costs


def test_the_first_generation_is_left_out_and_after_some_more_costs_are_fixed():
    assert told(MEASURED).rollout_cost is None and not told(MEASURED).fixed
    whole = told(MEASURED + 1)
    assert whole.fixed and whole.each == (0.03, 0.02, 0.04)
    assert whole.after((99.0, 99.0, 99.0), (1, 1, 1)) is whole, "never again"


@pytest.mark.parametrize(("generated", "cost"), [(6.0, 1.0), (5.0, 1.0), (12.5, 2.0), (48.0, 8.0), (0.7, 0.125)])
def test_a_generated_token_costs_a_power_of_two_of_one_that_is_scored_and_trained_on(generated, cost):
    assert told(MEASURED + 1, seconds=(generated, 1.0, 2.0)).rollout_cost == cost


def test_nothing_is_known_without_tokens():
    assert told(MEASURED + 1, tokens=(100, 0, 0)).rollout_cost is None
    assert TokenCosts(fixed=True).rollout_cost is None


def test_a_checkpoint_fixes_them_and_gives_them_back():
    early = told(4).settled()
    assert early.fixed and early.rollout_cost == 0.5 and TokenCosts.of_saved(asdict(early)) == early
    assert TokenCosts.of_saved({}) == TokenCosts(fixed=True), "an earlier version's run goes on with a constant"
    for damaged in ({"seconds": [1]}, asdict(early) | {"tokens": [1, 2]}, asdict(early) | {"seconds": [-1, 0, 0]}):
        with refused(CheckpointError, "damaged"):
            TokenCosts.of_saved(damaged)
