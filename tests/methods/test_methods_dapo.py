"""DAPO: a wider upper clip, a mean over tokens, and rounds until enough groups have rewards that differ."""

import numpy as np
from arrays import rewards_of
from tiny_policy import DAPO_BY_HAND

from dppo.methods.dapo import has_variance

BY_HAND = dict.fromkeys(("dapo", "dapo_loss"), DAPO_BY_HAND)


def test_groups_count_when_the_population_deviation_of_the_reward_they_are_trained_with_is_positive():
    """But for the rounding of a mean: taken literally, three times 0.1 has a deviation above 0."""
    groups = [1.0, 0.0, 1.0, 0.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.1], [1.0, 1.0, 1.0, 1.0, 1.0], [-2.0, -2.5]
    assert np.std([0.1] * 3) > 0
    assert has_variance(rewards_of(*groups)).tolist() == [np.std(group) > 1e-12 for group in groups]
    assert has_variance(rewards_of([[1.0, 0.0], [1.0, -0.5]], [[0.0, 0.0], [1.0, -0.5]])).tolist() == [True, True]
