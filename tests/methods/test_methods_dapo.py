"""DAPO: a wider upper clip, a mean over tokens, and rounds until enough groups have rewards that differ."""

import numpy as np
import torch
from arrays import rewards_of
from tiny_policy import DAPO_BY_HAND

from dppo.methods import METHODS
from dppo.methods.dapo import has_variance
from dppo.types import Rewards

UNBIASED = {"dapo": False, "dapo_loss": True}
BY_HAND = {"dapo": DAPO_BY_HAND, "dapo_loss": DAPO_BY_HAND}
DAPO, DAPO_LOSS = METHODS["dapo"], METHODS["dapo_loss"]


GROUPS = [[1.0, 0.0, 1.0, 0.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.1], [1.0, 1.0, 1.0, 1.0, 1.0], [-2.0, -2.5]]


def test_groups_count_when_their_population_deviation_is_positive():
    """But for the rounding of a mean: taken literally, three times 0.1 has a deviation above 0."""
    assert np.std([0.1] * 3) > 0
    assert has_variance(rewards_of(*GROUPS)).tolist() == [np.std(group) > 1e-12 for group in GROUPS]


def test_groups_count_by_the_reward_they_are_trained_with():
    accuracy = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    penalty = torch.tensor([[0.0, -0.5], [0.0, -0.5]])
    both = Rewards(reward_NF=torch.stack([accuracy, penalty], -1).view(4, 2), group_N=torch.tensor([0, 0, 1, 1]))
    assert has_variance(Rewards.of_groups(accuracy)).tolist() == [False, True]
    assert has_variance(both).tolist() == [True, True]
