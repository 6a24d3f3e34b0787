"""The ceiling of what choosing can save, and rates that are chosen from it: golden numbers and wrong twins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import efficiency, tensor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError
from dppo.pruning import (
    DETERMINISTIC,
    UNWEIGHTED,
    Auto,
    Budget,
    MomentSamples,
    PromptHistory,
    PromptPruning,
    Pruning,
    ceiling_of,
    proportional,
)
from dppo.pruning.ceiling import Choice, choose, rates_to, selection_ceiling
from dppo.types import Draw, Rewards

EAGER = Auto(fewest=1, least_gain=1.0)
"""Prunes as soon as it gains anything."""
ONES = torch.ones(400, dtype=torch.float64)
GOLDEN = {
    "half of the units without a gradient": ([0, 1], [1, 1], 2.0),
    "two sizes": ([1, 9], [1, 1], 5 / 4),
    "costs alone": ([1, 1], [1, 4], 10 / 9),
    "what costs more is worth more": ([1, 4], [1, 4], 1.0),
    "what costs more is worth nothing": ([1, 0], [1, 3], 4.0),
    "no gradient at all": ([0, 0], [1, 2], 1.0),
}


@pytest.mark.parametrize(("value", "cost", "wanted"), GOLDEN.values(), ids=GOLDEN)
def test_golden_ceilings(value, cost, wanted):
    assert selection_ceiling(tensor(value), tensor(cost)) == pytest.approx(wanted, rel=1e-12)
    assert selection_ceiling(7 * tensor(value), tensor(cost) / 3) == pytest.approx(wanted, rel=1e-12), "any units"


def test_what_is_paid_anyway_lowers_the_ceiling():
    assert selection_ceiling(tensor([0, 1]), tensor([1, 1]), paid=2.0) == pytest.approx(4 / 3)


UNITS = st.lists(st.tuples(*[st.floats(0.01, 10)] * 2, st.floats(0.05, 1)), min_size=2, max_size=8)


@given(UNITS, st.floats(0, 100))
def test_no_probabilities_save_more_and_the_best_save_all_of_it(units, paid):
    value, cost, prob = tensor(units).T
    beside = selection_ceiling(value, cost, paid=paid)
    assert efficiency(prob, value, cost, paid=paid) <= beside * (1 + 1e-12) and beside >= 1
    best = (value / cost).sqrt()
    assert efficiency(best / best.max(), value, cost) == pytest.approx(selection_ceiling(value, cost), rel=1e-9)


def visits(chance_P, times, *, seed=0) -> MomentSamples:
    """What a real history expects of prompts after some visits of each, and what the next one gives: 1 or 0."""
    rng, size = np.random.default_rng(seed), len(chance_P)
    history, rows = PromptHistory(np.arange(size, dtype=np.uint64), half_life=1e9), torch.arange(size)
    rewards, one_P = Rewards.of_groups(torch.zeros(size, 1)), torch.ones(size, dtype=torch.float64)
    for step in range(times):
        history.update(rows, rewards, torch.from_numpy((rng.random(size) < chance_P).astype(float)), one_P, step)
    everything = Draw(keep_N=one_P.bool(), prob_N=one_P, weight_N=one_P)
    signal_P = torch.from_numpy((rng.random(size) < chance_P).astype(float))
    return MomentSamples.of_visits(history.candidates(rows, times), everything, rewards, signal_P, one_P)


def probabilities(level: PromptPruning, samples: MomentSamples):
    """Those of a level at its rate, by its rule and floor, written out."""
    return level.rule(samples.expected_N.sqrt(), Budget(rate=level.rate, floor=min(level.floor, (1 - level.rate) / 2)))


def test_the_ceiling_is_near_the_truth_after_four_visits():
    """1,024 prompts, all alike (truth 1.00) or of two kinds (truth 1.10). The wrong twin believes the history."""
    alike, kinds = (visits(chance_P, 4) for chance_P in (np.full(1024, 0.2), np.where(np.arange(1024) % 2, 0.24, 0.9)))
    believed = [selection_ceiling(found.expected_N, torch.ones_like(found.expected_N)) for found in (alike, kinds)]
    assert ceiling_of(alike).value < 1.005 and believed[0] > 1.05
    said = ceiling_of(kinds)
    assert said.low <= 1.1 <= said.high and abs(said.value - 1.1) < abs(believed[1] - 1.1)


def test_completions_of_a_prompt_are_resampled_together():
    value_N, group_N = tensor([0.01, 1, 9]).repeat_interleave(30), torch.arange(3).repeat_interleave(30)
    together = ceiling_of(MomentSamples.known(value_N, torch.ones(90), group_N))
    apart = ceiling_of(MomentSamples.known(value_N, torch.ones(90)))
    assert together.value == apart.value and together.high - together.low > 2 * (apart.high - apart.low)


def test_evidence_is_remembered_bit_by_bit_and_the_oldest_is_forgotten():
    found = visits(np.random.default_rng(2).random(50), 3)
    again = MomentSamples.of_saved(found.saved())
    assert all(torch.equal(getattr(found, name), getattr(again, name)) for name in found.saved())
    both = found.after(again, most=70)
    assert len(both) == 70 and torch.equal(both.found_N[-50:], found.found_N) and len(MomentSamples.none()) == 0


def two_kinds(units: int = 400) -> MomentSamples:
    """Half of the units have a hundredth of the others' moment."""
    return MomentSamples.known(tensor([0.01, 1]).repeat_interleave(units // 2), torch.ones(units))


PROMPTS = PromptPruning(rate=0.8, floor=0.2, auto=Auto())


def test_the_smallest_rate_that_has_nearly_all_of_the_gain():
    samples = two_kinds()
    gains = {
        rate: efficiency(probabilities(replace(PROMPTS, rate=rate, auto=None), samples), samples.found_N, ONES)
        for rate in rates_to(0.8)
    }
    choice = PROMPTS.choice(samples)
    assert choice.gain == pytest.approx(max(gains.values()), abs=1e-6) and choice.low > 1.05
    assert choice.rate == min(r for r, g in gains.items() if g >= 1 + 0.95 * (choice.gain - 1)) == 0.4
    assert replace(PROMPTS, auto=Auto(enough=0.2)).choice(samples).rate < choice.rate
    assert replace(PROMPTS, rate=0.3).choice(samples).rate == 0.3, "the level's own rate is the most that it drops"
    assert PROMPTS.at_chosen_rate(samples) == replace(PROMPTS, rate=0.4, auto=None)
    assert PROMPTS.at_rate(0.0).at_chosen_rate(samples).rate == 0.0, "as a schedule turns it off"


def test_what_is_not_sure_or_not_worth_it_is_left_off():
    few, small = two_kinds(units=64), MomentSamples.known(tensor([1, 1.8]).repeat(200), ONES)
    assert PROMPTS.choice(two_kinds(units=60)) == Choice(), "a choice needs 64 units"
    assert PROMPTS.choice(few).rate > 0.0
    choice = PROMPTS.choice(small)
    assert choice.rate == 0.0 and 1.0 < choice.gain < 1.05, "1.05x is the least worth having"
    assert replace(PROMPTS, auto=Auto(least_gain=1.005)).choice(small).rate > 0.0
    found = replace(few, found_N=torch.arange(64) % 16 / 8.0)
    assert PROMPTS.choice(found).rate == 0.0, "what was found says nothing of the kind"


@given(
    value=st.lists(st.floats(0, 1e3), min_size=16, max_size=60),
    cost=st.lists(st.floats(1, 1e3), min_size=60, max_size=60),
    paid=st.floats(0, 1e5),
)
def test_a_look_stops_at_the_first_fall_and_misses_nothing(value, cost, paid):
    cost_N = tensor(cost[: len(value)])
    samples, rolled_out = MomentSamples.known(tensor(value), cost_N, paid=paid), Auto(rollout_cost=1.0, fewest=1)

    def prob_at(rate: float) -> torch.Tensor:
        return proportional(samples.expected_N.sqrt(), Budget(rate=rate, floor=0.1, cost_N=cost_N))

    gains = [efficiency(prob_at(rate), samples.found_N, cost_N, paid=paid) for rate in rates_to(0.8)]
    assert choose(rolled_out, samples, prob_at, 0.8).gain == pytest.approx(max(1.0, *gains), abs=2e-6)


def test_looks_are_few_where_pruning_gains_nothing_and_all_where_moments_are_another_matter():
    looked_at = []

    def prob_at(rate: float) -> torch.Tensor:
        looked_at.append(rate)
        return ONES[:64] * (1 - rate)

    alike = MomentSamples.known(ONES[:64], ONES[:64], paid=640.0)
    assert choose(replace(EAGER, rollout_cost=1.0), alike, prob_at, 0.8).rate == 0.0 and looked_at == [0.1]
    found = replace(alike, expected_N=torch.arange(64).double())
    looked_at.clear()
    assert choose(replace(EAGER, rollout_cost=1.0), found, prob_at, 0.8).rate == 0.0 and looked_at == rates_to(0.8)


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_few_large_groups_are_evidence(groups):
    value_N = two_kinds(units=256).found_N
    samples = MomentSamples.known(value_N, ONES[:256], torch.arange(256) % groups)
    assert PROMPTS.choice(samples).rate > 0.0


def test_bad_settings_are_named():
    with refused(ConfigError, "least_gain=0.5", "fewest=0", "enough=0", "rollout_cost=-1", "tail=0.7"):
        Auto(least_gain=0.5, fewest=0, enough=0.0, rollout_cost=-1.0, tail=0.7)
    for biased in ({"design": DETERMINISTIC}, {"weighting": UNWEIGHTED}):
        with refused(ConfigError, "auto=None"):
            Pruning(rate=0.5, auto=Auto(), **biased)
    assert choose(Auto(fewest=1), MomentSamples.none(), lambda rate: ONES[:0], 0.8).rate == 0.0
