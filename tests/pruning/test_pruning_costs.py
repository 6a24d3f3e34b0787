"""Costs of tokens and passes: seconds come in as values, the fit finds what made them, and checkpoints keep it."""

import json
from dataclasses import asdict

import pytest

from dppo.costs import MEASURED_GENERATIONS, PassCosts, Passes, Spent, TokenCosts
from dppo.rng import Purpose, generator

LIVE = (20, 110, 60, 150, 80, 40, 120, 60)
"""Tokens kept in each generation that is measured; without pruning 500 each."""


def spent(generating=3.0, scoring=1.0, training=2.0, *, scored=50, trained=50, passes=1):
    found = (Passes(passes, tokens, 1, 500, 1) for tokens in (scored, trained))
    return Spent(generating, scoring, training, generating + scoring + training, *found)


def recorded(generations=MEASURED_GENERATIONS + 1, **generation):
    costs = TokenCosts().after(spent(1000.0, 1000.0), 100, 50)
    for _ in range(generations - 1):
        costs = costs.after(spent(**generation), 100, 50)
    return costs


def test_the_first_generation_is_left_out_and_after_some_more_or_a_checkpoint_costs_are_fixed():
    assert recorded(MEASURED_GENERATIONS).rollout_cost is None and not recorded(MEASURED_GENERATIONS).fixed
    whole = recorded()
    assert whole.fixed and whole.scoring.seconds == MEASURED_GENERATIONS
    assert whole.saved(1.0, Passes(), Passes()) == 0.03
    per_token = whole.scoring.saved(Passes(unpruned_tokens=1))
    assert per_token == pytest.approx(0.02), "with no sign of another cost, tokens make it all"
    later = whole.after(spent(99.0), 1, 1)
    assert later.rollout_cost == whole.rollout_cost, "a choice never changes by a clock again"
    assert later.seconds > whole.seconds, "and what was saved follows all generations"
    early = recorded(4).settled()
    assert early.fixed and early.known and early.rollout_cost == 0.5
    assert TokenCosts.of_saved(json.loads(json.dumps(asdict(early)))) == early


def test_a_generated_token_costs_a_power_of_two_of_one_that_is_scored_and_trained_on():
    for generating, cost in ((6.0, 1.0), (5.0, 1.0), (12.5, 2.0), (48.0, 8.0), (0.7, 0.125)):
        assert recorded(generating=generating).rollout_cost == cost
    without = recorded(scored=0, trained=0, passes=0, scoring=0.0, training=0.0)
    assert without.rollout_cost is None and not TokenCosts(fixed=True).known
    assert PassCosts().each == (0.0, 0.0, 0.0) and PassCosts().saved(Passes(1, 1, 2, 2)) == 0.0


def passes_of(live, budget, idle=0):
    """Passes that hold ``live`` tokens, and others that hold nothing."""
    return max(-(-live // budget), 1) + idle


def run_of(fixed, each, *, budget=10_000, idle=0, noise=0.0, live=LIVE, seed=0):
    """Costs of a run whose passes take ``fixed`` seconds and ``each`` for a token."""
    rng, costs = generator(seed, Purpose.CHECK), TokenCosts().after(spent(), 1, 1)
    for tokens in live:
        passes = passes_of(tokens, budget, idle)
        seconds = (fixed * passes + each * tokens) * (1 + noise * rng.standard_normal())
        found = Passes(passes, tokens, passes_of(500, budget), 500, 1)
        costs = costs.after(Spent(generating=5.0, training=seconds, trained=found), 1000.0, tokens)
    return costs


def shares_saved(fixed, each, *, budget=10_000, idle=0, **options):
    """Shares of the seconds of passes that are saved: in truth, as printed, and by a twin that books all on tokens."""
    passes, unpruned = sum(passes_of(n, budget, idle) for n in LIVE), len(LIVE) * passes_of(500, budget, idle)
    found = Passes(passes, sum(LIVE), unpruned, 500 * len(LIVE))
    costs = run_of(fixed, each, budget=budget, idle=idle, **options)
    seconds, more = costs.training.seconds, found.unpruned_tokens - found.tokens
    truth = fixed * (unpruned - passes) + each * more, fixed * unpruned + each * found.unpruned_tokens
    saved, by_tokens = costs.saved(0.0, Passes(), found), seconds / found.tokens * more
    return truth[0] / truth[1], saved / (seconds + saved), by_tokens / (seconds + by_tokens)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [10_000, 500, 250, 120, 60, 40])
def test_what_is_printed_as_saved_is_what_was_saved_whatever_the_budget(budget, seed):
    truth, printed, _ = shares_saved(0.2, 0.005, budget=budget, noise=0.05, seed=seed)
    assert printed == pytest.approx(truth, abs=0.05)


def test_all_seconds_booked_on_tokens_miss_the_truth_where_passes_are_idle():
    """Accumulation 32 as it was: one pass holds something, and 31 are run for nothing, pruned or not."""
    truth, printed, twin = shares_saved(0.07, 0.0024, idle=31)
    assert truth == pytest.approx(0.29, abs=0.01) and printed == pytest.approx(truth, abs=0.05)
    assert twin == pytest.approx(0.84, abs=0.01), "the wrong twin: 84% of the seconds, where 29% were saved"


def test_passes_that_hold_nothing_do_not_move_what_is_dear():
    runs = {idle: run_of(0.02, 0.005, idle=idle) for idle in (0, 1, 3, 7, 31)}
    costs = [runs[idle].rollout_cost for idle in (0, 1, 3, 7)]
    assert max(costs) <= 2 * min(costs)
    few, many = (sum(LIVE) / runs[idle].training.seconds for idle in (0, 31))
    assert few > 2 * many, "the wrong twin: a kept token seems dearer the more passes are idle"


def test_what_passes_cost_however_few_are_kept_is_no_cost_of_a_kept_token():
    """0.4 s a pass and as much for the 80 tokens of a mean one: half of it is saved by no choice.

    A generated token costs as much as one more that is kept; by all seconds over all tokens half as much.
    """
    half, tokens, passes = run_of(0.4, 0.005), run_of(0.0, 0.01), run_of(8.0, 0.0)
    assert half.training.growing / half.training.seconds == pytest.approx(0.5, abs=0.1)
    assert tokens.training.growing == pytest.approx(tokens.training.seconds)
    assert 0 < passes.training.growing < 0.5 * passes.training.seconds and passes.rollout_cost is not None
    assert (half.rollout_cost, tokens.rollout_cost) == (1.0, 0.5)
    even = run_of(0.0, 0.01, live=(80, 81, 79, 80, 82, 78, 80, 80), noise=0.2)
    assert even.training.growing > 0.8 * even.training.seconds, "nearly as many tokens in each say little"


def test_more_passes_grow_with_what_is_kept_and_the_first_does_not():
    several, one = (run_of(0.4, 0.002, budget=budget).training for budget in (40, 10_000))
    assert several.growing > 0.8 * several.seconds and one.growing < 0.4 * one.seconds
    twin = several._replace(unpruned=(0.0, several.unpruned[1]))
    assert twin.growing < 0.7 * several.growing, "the wrong twin: passes as if they were as many however much is kept"


def test_coefficients_are_never_negative():
    costs = TokenCosts().after(spent(), 1, 1)
    for tokens in LIVE:  # the more tokens, the fewer seconds
        costs = costs.after(spent(5.0, 0.0, 2.0 - 0.01 * tokens, trained=tokens, scored=0), 1000.0, tokens)
    assert min(costs.training.each) >= 0 and costs.training.each[2] < 0.005 and costs.rollout_cost is not None
