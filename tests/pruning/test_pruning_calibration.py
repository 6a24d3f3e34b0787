"""Visits calibrate what is expected: by hand, without information, and what ``auto`` gains over a run."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import candidates_of, efficiency, tensor
from drafts import Run, draft_of

from dppo.methods import METHODS
from dppo.pruning import PROMPT_AUTO, Auto, MomentSamples, PromptPruning
from dppo.pruning.ceiling import PROMPT_FLOOR, Calibration, by_others, choose
from dppo.types import Rewards


def visits(expected_N, found_N, weight_N=None):
    """Visits at equal costs; each stands for ``weight_N`` prompts, 1 by default."""
    samples = MomentSamples.known(tensor(found_N), torch.ones(len(found_N)))
    weight_N = samples.weight_N if weight_N is None else tensor(weight_N)
    return replace(samples, expected_N=tensor(expected_N), weight_N=weight_N)


def two_kinds(units=128):
    """Of half of the units .6 is expected and nothing found; of the others 1, and in every eighth of them 1."""
    return visits([0.6, 1.0] * (units // 2), [float(i % 16 == 1) for i in range(units)])


def test_a_calibration_by_hand():
    """Nothing found of 64 and 8 of 64, each with one unit of the mean over all, 8 in 128, added."""
    found = Calibration.of(two_kinds())(torch.tensor([0.1, 0.6, 0.9, 5.0])).tolist()
    assert found == pytest.approx([(1 / 16) / 65] * 2 + [(8 + 1 / 16) / 65] * 2)


def test_a_rare_success_counts_for_the_prompts_it_stands_for():
    """One of 64 visits gave something where nothing was expected. Asked one time in ten it stands for ten prompts."""
    once = [0.0] * 63 + [1.0]
    rare = visits([0.1] * 64 + [1.0] * 64, once + [1.0] * 64, [10.0] * 64 + [1.0] * 64)
    low, high = Calibration.of(rare)(torch.tensor([0.1, 1.0])).tolist()
    one, mean = 704 / 128, (10 + 64) / 704
    assert low == pytest.approx((10 + one * mean) / (640 + one))
    assert high == pytest.approx((64 + one * mean) / (64 + one))
    wrong = Calibration.of(replace(rare, weight_N=torch.ones(128, dtype=torch.float64)))
    assert wrong(torch.tensor([0.1])).item() < 2 * low
    spread = visits([0.1] * 64 + [1.0] * 64, once + [1.0] * 64)
    assert Calibration.of(spread)(torch.tensor([0.1])).item() == pytest.approx((1 + 65 / 128) / 65)


def test_expectations_never_fall_where_more_was_expected():
    found = [2.0] * 32 + [1.0] * 32 + [4.0] * 32
    value_N = Calibration.of(visits([1.0] * 32 + [2.0] * 32 + [3.0] * 32, found))(torch.tensor([1.0, 2.0, 3.0]))
    assert value_N[0] == value_N[1] < value_N[2]


def by_itself(level, samples, rate):
    """The wrong twin: probabilities at a rate by what the same units gave."""
    value_N = Calibration.of(samples)(samples.expected_N)
    return level._chosen(rate)._probabilities(value_N.sqrt(), samples.cost_N)


def test_noise_is_nothing_to_go_by():
    rng, level = torch.Generator().manual_seed(0), PromptPruning(rate=0.8, auto=PROMPT_AUTO)
    chosen = {"other half": 0, "itself": 0}
    for _ in range(100):
        noise = visits(torch.rand(128, generator=rng).tolist(), (torch.rand(128, generator=rng) < 0.1).tolist())
        wrong = choose(PROMPT_AUTO, noise, partial(by_itself, level, noise), 0.8)
        chosen["other half"] += level.choice(noise).rate > 0
        chosen["itself"] += wrong.rate > 0
    assert chosen["other half"] <= 5 < chosen["itself"]
    value_N = by_others(noise)
    changed = noise.found_N.clone()
    changed[7] = 50.0
    assert by_others(replace(noise, found_N=changed))[7] == value_N[7], "what a unit gave is not in its own"


def test_auto_draws_by_what_was_found():
    """Of prompts that history holds for .6 of the others, nothing came: they are asked one time in ten."""
    level = replace(PromptPruning(rate=0.8, auto=PROMPT_AUTO).at_chosen_rate(two_kinds(256)), rate=0.4)
    candidates = candidates_of([0.6**0.5, 1.0] * 8)
    by_visits, by_history = (one._seen_probabilities(candidates) for one in (level, replace(level, calibration=None)))
    assert by_visits[1] / by_visits[0] > 5
    assert by_history[1] / by_history[0] < 1.4, "as history has it, they are nearly alike"


def test_a_given_rate_draws_by_history():
    assert PromptPruning(rate=0.4).at_chosen_rate(two_kinds()).calibration is None
    off = PromptPruning(rate=0.8, auto=PROMPT_AUTO).at_chosen_rate(two_kinds(32))
    assert off.rate == 0 and off.calibration is None


@pytest.mark.parametrize("units", [0, 1, 2])
def test_hardly_any_visits_are_too_few_to_choose_by(units):
    chosen = PromptPruning(rate=0.8, auto=PROMPT_AUTO).at_chosen_rate(visits([0.5] * units, [1.0] * units))
    assert chosen.rate == 0 and chosen.auto is None


PROMPTS, STEPS, BLOCK, SIZE = 400, 150, 16, 4
MASTERED, DEAD, LIVE = (0.999, 280), (0.0005, 90), (0.5, 30)
"""Pass rates, and how many prompts have them."""
USUAL = PromptPruning(rate=PROMPT_AUTO.largest, floor=PROMPT_FLOOR, auto=PROMPT_AUTO)
FAR = PromptPruning(rate=0.8, floor=0.2, auto=Auto())
"""The wrong twin: up to 0.8, at weights of up to 10."""


def gain_over_a_run(level, seed):
    """Variance times cost of everything over that of the run's own probabilities; history learns from what is kept."""
    rng, probs, values = np.random.default_rng(seed), [], []
    rate_P = rng.permutation(np.repeat(*zip(MASTERED, DEAD, LIVE, strict=True)))
    run = Run.over(PROMPTS, replace(METHODS["dppo"], prompts=level), prompts=BLOCK, half_life=1000.0)
    for step in range(STEPS):
        prompts = run.block(step, generations=SIZE)
        right_QG = rng.random((len(prompts.row_Q), SIZE)) < rate_P[prompts.row_Q][:, None]
        run.learn(draft_of(run.method, prompts, Rewards.of_groups(torch.from_numpy(right_QG).double())), step)
        probs.append(prompts.draw.prob_N)
        values.append(rate_P[prompts.candidates.row_P])
    rate_N = torch.from_numpy(np.concatenate(values))
    return efficiency(torch.cat(probs), rate_N * (1 - rate_N), torch.ones(STEPS * BLOCK))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_rate_of_half_at_most_gains_more_than_one_that_goes_far(seed):
    usual = gain_over_a_run(USUAL, seed)
    assert usual > 1.4 and usual > gain_over_a_run(FAR, seed) + 0.05
