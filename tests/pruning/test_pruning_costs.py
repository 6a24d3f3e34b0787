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
    for damaged in ({}, {"seconds": [1]}, asdict(early) | {"tokens": [1, 2]}, asdict(early) | {"seconds": [-1, 0, 0]}):
        with refused(CheckpointError, "damaged"):
            TokenCosts.of_saved(damaged)


def passes(fixed, each, live, noise=(0.0,) * MEASURED):
    """Costs of a run whose passes take ``fixed`` seconds and ``each`` for a token, beside rollouts of 1,000 tokens."""
    costs = TokenCosts().after((1.0, 1.0, 1.0), (1, 1, 1))
    for tokens, more in zip(live, noise, strict=True):
        costs = costs.after((5.0, 0.0, fixed + each * tokens + more), (1000, 0, tokens))
    return costs


LIVE = (20, 110, 60, 150, 80, 40, 120, 60)


def test_what_passes_cost_however_few_are_kept_is_no_cost_of_a_kept_token():
    # 0.4 s a pass and as much for the 80 tokens of a mean one: half of it is saved by no choice.
    costs = passes(0.4, 0.005, LIVE)
    assert costs.growing == pytest.approx(0.5, abs=0.1)
    assert costs.each[2] == pytest.approx(0.005, rel=0.2) and costs.each[0] == 0.005
    assert costs.seconds[2] / costs.tokens[2] > 1.9 * 0.005, "the wrong twin: all seconds over all tokens"
    # A generated token costs as much as one more that is kept; by the wrong twin half as much.
    assert costs.rollout_cost == 1.0
    assert passes(0.0, 0.01, LIVE).growing == pytest.approx(1.0) and passes(0.0, 0.01, LIVE).rollout_cost == 0.5


def test_passes_of_nearly_as_many_tokens_say_little_about_a_fixed_cost():
    noise = (0.3, -0.2, 0.1, -0.3, 0.2, -0.1, 0.3, -0.3)
    even = passes(0.0, 0.01, (80, 81, 79, 80, 82, 78, 80, 80), noise)
    assert even.growing > 0.9
    assert 0 < passes(8.0, 0.0, LIVE).growing < 0.5 and passes(8.0, 0.0, LIVE).rollout_cost is not None
