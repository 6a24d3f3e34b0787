"""Rates that are chosen: the ceiling of what pruning can save, its calibration by visits, and wrong twins of both."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import candidates_of, efficiency, tensor
from drafts import Run, trained
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.pruning import Auto, Budget, MomentSamples, PromptHistory, PromptPruning, Pruning, ceiling_of, proportional
from dppo.pruning.ceiling import (
    PROMPT_AUTO,
    PROMPT_FLOOR,
    Calibration,
    Choice,
    by_others,
    choose,
    rates_to,
    selection_ceiling,
)
from dppo.pruning.designs import DETERMINISTIC, UNWEIGHTED
from dppo.types import Draw, Rewards

ROLLED_OUT = Auto(fewest=1, least_gain=1.0, rollout_cost=1.0)
"""Prunes as soon as it gains anything of what is not paid before."""
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
def test_golden_ceilings_in_any_units(value, cost, wanted):
    assert selection_ceiling(tensor(value), tensor(cost)) == pytest.approx(wanted, rel=1e-12)
    assert selection_ceiling(7 * tensor(value), tensor(cost) / 3) == pytest.approx(wanted, rel=1e-12)


UNITS = st.lists(st.tuples(*[st.floats(0.01, 10)] * 2, st.floats(0.05, 1)), min_size=2, max_size=8)


@given(UNITS, st.floats(0, 100))
def test_no_probabilities_save_more_and_the_best_save_all_of_it(units, paid):
    value, cost, prob = tensor(units).T
    beside = selection_ceiling(value, cost, paid=paid)
    assert efficiency(prob, value, cost, paid=paid) <= beside * (1 + 1e-12) and beside >= 1
    best = (value / cost).sqrt()
    assert efficiency(best / best.max(), value, cost) == pytest.approx(selection_ceiling(value, cost), rel=1e-9)
    assert selection_ceiling(tensor([0, 1]), tensor([1, 1]), paid=2.0) == pytest.approx(4 / 3)


def of_history(chance_P, times) -> MomentSamples:
    """What a real history expects of prompts after some visits of each, and what the next one gives: 1 or 0."""
    rng, size = np.random.default_rng(0), len(chance_P)
    history, rows = PromptHistory(np.arange(size, dtype=np.uint64), half_life=1e9), torch.arange(size)
    rewards, one_P = Rewards.of_groups(torch.zeros(size, 1)), torch.ones(size, dtype=torch.float64)
    for step in range(times):
        history.update(rows, rewards, torch.from_numpy((rng.random(size) < chance_P).astype(float)), one_P, step)
    everything = Draw(keep_N=one_P.bool(), prob_N=one_P, weight_N=one_P)
    signal_P = torch.from_numpy((rng.random(size) < chance_P).astype(float))
    return MomentSamples.of_visits(history.candidates(rows, times), everything, rewards, signal_P, one_P)


def test_the_ceiling_is_near_the_truth_after_four_visits():
    """1,024 prompts, all alike (truth 1.00) or of two kinds (truth 1.10). The wrong twin believes the history."""
    alike, kinds = (of_history(chance, 4) for chance in (np.full(1024, 0.2), np.tile([0.9, 0.24], 512)))
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
    found = of_history(np.random.default_rng(2).random(50), 3)
    again = MomentSamples.of_saved(found.saved())
    assert all(torch.equal(getattr(found, name), getattr(again, name)) for name in found.saved())
    both = found.after(again, most=70)
    assert len(both) == 70 and torch.equal(both.found_N[-50:], found.found_N) and len(MomentSamples.none()) == 0


def two_kinds(units: int = 400) -> MomentSamples:
    """Half of the units have a hundredth of the others' moment."""
    return MomentSamples.known(tensor([0.01, 1]).repeat_interleave(units // 2), torch.ones(units))


PROMPTS = PromptPruning(rate=0.8, floor=0.2, auto=Auto())


def test_the_smallest_rate_that_has_nearly_all_of_the_gain():
    samples, gains = two_kinds(), {}
    for rate in rates_to(0.8):
        prob_N = proportional(samples.expected_N.sqrt(), Budget(rate=rate, floor=min(0.2, (1 - rate) / 2)))
        gains[rate] = efficiency(prob_N, samples.found_N, ONES)
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
    assert choose(Auto(fewest=1), MomentSamples.none(), lambda rate: ONES[:0], 0.8).rate == 0.0
    for groups in (1, 2, 3):
        samples = MomentSamples.known(two_kinds(256).found_N, ONES[:256], torch.arange(256) % groups)
        assert PROMPTS.choice(samples).rate > 0.0, "few large groups are evidence"


@given(
    value=st.lists(st.floats(0, 1e3), min_size=16, max_size=60),
    cost=st.lists(st.floats(1, 1e3), min_size=60, max_size=60),
    paid=st.floats(0, 1e5),
)
def test_a_look_stops_at_the_first_fall_and_misses_nothing(value, cost, paid):
    cost_N = tensor(cost[: len(value)])
    samples = MomentSamples.known(tensor(value), cost_N, paid=paid)

    def prob_at(rate: float) -> torch.Tensor:
        return proportional(samples.expected_N.sqrt(), Budget(rate=rate, floor=0.1, cost_N=cost_N))

    gains = [efficiency(prob_at(rate), samples.found_N, cost_N, paid=paid) for rate in rates_to(0.8)]
    assert choose(ROLLED_OUT, samples, prob_at, 0.8).gain == pytest.approx(max(1.0, *gains), abs=2e-6)


def test_looks_are_few_where_pruning_gains_nothing_and_all_where_moments_are_another_matter():
    alike = MomentSamples.known(ONES[:64], ONES[:64], paid=640.0)
    found = replace(alike, expected_N=torch.arange(64).double())
    for samples, looks in ((alike, [0.1]), (found, rates_to(0.8))):
        looked_at = []

        def prob_at(rate: float, looked_at=looked_at) -> torch.Tensor:
            looked_at.append(rate)
            return ONES[:64] * (1 - rate)

        assert choose(ROLLED_OUT, samples, prob_at, 0.8).rate == 0.0 and looked_at == looks


def test_bad_settings_are_named():
    with refused(ConfigError, "least_gain=0.5", "fewest=0", "enough=0", "rollout_cost=-1", "tail=0.7"):
        Auto(least_gain=0.5, fewest=0, enough=0.0, rollout_cost=-1.0, tail=0.7)
    for biased in ({"design": DETERMINISTIC}, {"weighting": UNWEIGHTED}):
        with refused(ConfigError, "auto=None"):
            Pruning(rate=0.5, auto=Auto(), **biased)


def visits(expected_N, found_N, weight_N=None):
    """Visits at equal costs; each stands for ``weight_N`` prompts, 1 by default."""
    samples = MomentSamples.known(tensor(found_N), torch.ones(len(found_N)))
    weight_N = samples.weight_N if weight_N is None else tensor(weight_N)
    return replace(samples, expected_N=tensor(expected_N), weight_N=weight_N)


def mostly_nothing(units=128):
    """Half of the units are expected to have .6 and have 0; the others are expected to have 1, and one in 8 has it."""
    return visits([0.6, 1.0] * (units // 2), [float(i % 16 == 1) for i in range(units)])


def test_a_calibration_by_hand_never_falls():
    """Nothing found of 64 and 8 of 64, each with one unit of the mean over all, 8 in 128, added."""
    found = Calibration.of(mostly_nothing())(torch.tensor([0.1, 0.6, 0.9, 5.0])).tolist()
    assert found == pytest.approx([(1 / 16) / 65] * 2 + [(8 + 1 / 16) / 65] * 2)
    falling = visits([1.0] * 32 + [2.0] * 32 + [3.0] * 32, [2.0] * 32 + [1.0] * 32 + [4.0] * 32)
    value_N = Calibration.of(falling)(torch.tensor([1.0, 2.0, 3.0]))
    assert value_N[0] == value_N[1] < value_N[2]


def test_a_rare_success_counts_for_the_prompts_it_stands_for():
    """One of 64 visits gave something where nothing was expected. Asked one time in ten it stands for ten prompts."""
    rare = visits([0.1] * 64 + [1.0] * 64, [0.0] * 63 + [1.0] * 65, [10.0] * 64 + [1.0] * 64)
    low, high = Calibration.of(rare)(torch.tensor([0.1, 1.0])).tolist()
    one, mean = 704 / 128, (10 + 64) / 704
    assert low == pytest.approx((10 + one * mean) / (640 + one))
    assert high == pytest.approx((64 + one * mean) / (64 + one))
    wrong = Calibration.of(replace(rare, weight_N=torch.ones(128).double()))(torch.tensor([0.1])).item()
    assert wrong == pytest.approx((1 + 65 / 128) / 65) and wrong < 2 * low


def test_noise_is_nothing_to_go_by():
    """The wrong twin sets probabilities by what the same units gave."""
    rng, level = torch.Generator().manual_seed(0), PromptPruning(rate=0.8, auto=PROMPT_AUTO)

    def by_itself(samples, rate):
        value_N = Calibration.of(samples)(samples.expected_N)
        return level._chosen(rate)._probabilities(value_N.sqrt(), samples.cost_N)

    chosen = {"other half": 0, "itself": 0}
    for _ in range(100):
        noise = visits(torch.rand(128, generator=rng).tolist(), (torch.rand(128, generator=rng) < 0.1).tolist())
        chosen["other half"] += level.choice(noise).rate > 0
        chosen["itself"] += choose(PROMPT_AUTO, noise, partial(by_itself, noise), 0.8).rate > 0
    assert chosen["other half"] <= 5 < chosen["itself"]
    changed = noise.found_N.clone()
    changed[7] = 50.0
    assert by_others(replace(noise, found_N=changed))[7] == by_others(noise)[7], "what a unit gave is not in its own"


def test_auto_draws_by_what_was_found_and_a_given_rate_by_history():
    """Prompts with an expectation of .6 gave nothing, so they are requested one time in ten."""
    auto = PromptPruning(rate=0.8, auto=PROMPT_AUTO)
    level = replace(auto.at_chosen_rate(mostly_nothing(256)), rate=0.4)
    candidates = candidates_of([0.6**0.5, 1.0] * 8)
    by_visits, by_history = (one._seen_probabilities(candidates) for one in (level, replace(level, calibration=None)))
    assert by_visits[1] / by_visits[0] > 5
    assert by_history[1] / by_history[0] < 1.4, "as history has it, they are nearly alike"
    assert PromptPruning(rate=0.4).at_chosen_rate(mostly_nothing()).calibration is None
    for few in (mostly_nothing(32), *(visits([0.5] * units, [1.0] * units) for units in (0, 1, 2))):
        off = auto.at_chosen_rate(few)
        assert off.rate == 0 and off.calibration is None and off.auto is None


MASTERED, DEAD, LIVE = (0.999, 280), (0.0005, 90), (0.5, 30)
"""Pass rates, and how many prompts have them."""
USUAL = PromptPruning(rate=PROMPT_AUTO.largest, floor=PROMPT_FLOOR, auto=PROMPT_AUTO)
FAR = PromptPruning(rate=0.8, floor=0.2, auto=Auto())
"""The wrong twin: up to 0.8, at weights of up to 10."""


def gain_over_a_run(level, seed):
    """Variance times cost of everything over that of the run's own probabilities; history learns from what is kept."""
    rng = np.random.default_rng(seed)
    rate_P = torch.from_numpy(rng.permutation(np.repeat(*zip(MASTERED, DEAD, LIVE, strict=True))))

    def answers(row_Q):
        right_QG = rng.random((len(row_Q), 4)) < rate_P[row_Q].numpy()[:, None]
        return Rewards.of_groups(torch.from_numpy(right_QG).double())

    run = Run.over(len(rate_P), replace(METHODS["dppo"], prompts=level), prompts=16, half_life=1000.0)
    steps = trained(run, 150, answers=answers, generations=4)
    rate_N = torch.cat([rate_P[prompts.candidates.row_P] for prompts in steps])
    prob_N = torch.cat([prompts.draw.prob_N for prompts in steps])
    return efficiency(prob_N, rate_N * (1 - rate_N), torch.ones(len(rate_N)))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_rate_of_half_at_most_gains_more_than_one_that_goes_far(seed):
    usual = gain_over_a_run(USUAL, seed)
    assert usual > 1.4 and usual > gain_over_a_run(FAR, seed) + 0.05
