"""DAPO: a wider upper clip, a mean over tokens, and rounds until enough groups have rewards that differ."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from one_step import lengths, loss_of, ratio_loss, rewards_of, step_of
from tiny_policy import DAPO_BY_HAND

from dppo.errors import RoundsError
from dppo.methods import METHODS
from dppo.methods.dapo import deviating
from dppo.objective import group_advantages
from dppo.pruning import Request
from dppo.pruning.rounds import Collected, fill
from dppo.types import Rewards

UNBIASED = {"dapo": False, "dapo_loss": False}
BY_HAND = {"dapo": DAPO_BY_HAND, "dapo_loss": DAPO_BY_HAND}
DAPO, DAPO_LOSS = METHODS["dapo"], METHODS["dapo_loss"]
NAN = float("nan")


def test_ratios_are_clipped_at_28_hundredths_above():
    assert ratio_loss(DAPO, 1.0, 1.0) == pytest.approx(-1.28, abs=1e-12)
    assert ratio_loss(DAPO, -1.0, -1.0) == pytest.approx(0.8, abs=1e-12)


def test_the_loss_is_a_mean_over_the_tokens_of_the_step():
    groups, tokens_N = ([1, 0, 0], [2, 2], [0, 1, 1]), lengths(8)
    by_hand = -(group_advantages(rewards_of(*groups)) * tokens_N).sum().item() / tokens_N.sum().item()
    assert loss_of(DAPO_LOSS, step_of(DAPO_LOSS, *groups)) == pytest.approx(by_hand, abs=1e-12)


def test_rounds_are_all_that_is_added_to_the_loss():
    assert replace(DAPO_LOSS, name=DAPO.name, rounds=DAPO.rounds, deviations=DAPO.deviations) == DAPO
    assert (DAPO.rounds.limit, DAPO.rounds.at_limit, DAPO.rounds.skipping) == (10, "stop", None)
    assert DAPO.rounds.factor == 1 and DAPO.rounds.size(Collected(wanted=512, usual=512)) == Request(prompts=512)


GROUPS = [
    [1.0, 0.0, 1.0, 0.0],
    [0.1, 0.1, 0.1],
    [0.0, 0.0, 0.0, 0.1],
    [1.0, 1.0, 1.0, 1.0, 1.0],
    [-2.0, -2.5],
]


def test_groups_count_when_their_population_deviation_is_positive():
    """But for the rounding of a mean: taken literally, three times 0.1 has a deviation above 0."""
    assert np.std([0.1] * 3) > 0
    assert deviating(rewards_of(*GROUPS)).tolist() == [np.std(group) > 1e-12 for group in GROUPS]


def test_a_group_of_one_counts_if_it_has_a_reward():
    assert deviating(rewards_of([0.0], [1.0], [NAN], [0.0, 0.0])).tolist() == [True, True, False, False]


def test_rewards_that_are_missing_say_nothing():
    groups = [[NAN, 1.0, 0.0], [NAN, 1.0, 1.0], [NAN, NAN, NAN], [NAN, NAN, 1.0]]
    assert deviating(rewards_of(*groups)).tolist() == [True, False, False, False]


def test_groups_count_by_the_reward_they_are_trained_with():
    """A length penalty lets a group count that accuracy, which the paper's code looks at, would not."""
    accuracy = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    penalty = torch.tensor([[0.0, -0.5], [0.0, -0.5]])
    both = Rewards(reward_NF=torch.stack([accuracy, penalty], -1).view(4, 2), group_N=torch.tensor([0, 0, 1, 1]))
    assert deviating(Rewards.of_groups(accuracy)).tolist() == [False, True]
    assert deviating(both).tolist() == [True, True]


def test_a_step_is_the_first_groups_that_count_and_too_few_are_an_error():
    patterns = [([0, 0], [0, 1]), ([1, 1], [1, 0]), ([0, 2], [0, 1])]
    filled = fill(DAPO.rounds, 2, lambda number, prompts: rewards_of(*patterns[number]))
    assert filled.keep_Q.tolist() == [False, True, False, True] and filled.collected.rounds == 2
    with pytest.raises(RoundsError, match="after 10 rounds 0 of 20"):
        fill(DAPO.rounds, 2, lambda number, prompts: rewards_of([1, 1], [0, 0]))
