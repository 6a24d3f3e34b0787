"""GRESO: what is easy and hard, what it is skipped at, how much is explored, and how large its rounds are."""

import pytest
import torch
from arrays import rewards_of

from dppo.methods import METHODS
from dppo.methods.greso import EASY, HARD, NEITHER, Exploration, by_mean, by_variance, mixed
from dppo.pruning import RoundRequest
from dppo.pruning.rounds import Collected

ROUNDS, SKIPPING = METHODS["greso"].rounds, METHODS["greso"].rounds.skipping
COMPAT_SKIPPING = METHODS["greso_compat"].rounds.skipping
NAN = float("nan")
GROUPS = rewards_of([1] * 4, [0] * 3, [0.1] * 4, [0, 0.1, 0.1, 0.1], [1, 1, 1, 0], [1, 0.1], [NAN] * 3)


def test_by_variance_a_mixture_is_neither_and_by_the_mean_one_of_small_rewards_is_hard():
    assert by_variance(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, NEITHER, NEITHER, NEITHER, NEITHER]
    assert by_mean(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, HARD, NEITHER, NEITHER, NEITHER]
    assert (SKIPPING.streak, COMPAT_SKIPPING.streak) == (by_variance, by_mean)
    for group, kind in (([1] + [0] * 15, HARD), ([1] * 49 + [0], EASY)):
        rewards = rewards_of(group)
        assert by_mean(rewards, 0, 1).tolist() == [kind] and by_variance(rewards, 0, 1).tolist() == [NEITHER]


@pytest.mark.parametrize("explore", [0.5, 0.05, 0.95])
def test_keep_probabilities_by_hand(explore):
    wanted = [max(explore**streak, 0.01) for streak in range(9)]
    easy = SKIPPING.chances(torch.arange(9), Exploration(easy=explore, hard=0.3))
    hard = SKIPPING.chances(-torch.arange(9), Exploration(easy=0.3, hard=explore))
    assert easy[:, 0].tolist() == hard[:, 1].tolist() == pytest.approx(wanted, rel=1e-9)
    assert easy[:, 1].tolist() == hard[:, 0].tolist() == [1.0] * 9


def explored(skipping, *groups, epochs=2.0):
    """What is explored of easy and hard prompts after a first step."""
    _, after = skipping.learn(skipping.start(), rewards_of(*groups), epochs=epochs)
    assert skipping.metrics(after) == {"prune/explore_easy": after.easy, "prune/explore_hard": after.hard}
    return after.easy, after.hard


@pytest.mark.parametrize(
    ("easy", "hard", "wanted"),
    [(0, 0, (0.51, 0.51)), (1, 1, (0.49, 0.51)), (0, 2, (0.51, 0.49)), (1, 2, (0.49, 0.49))],
    ids=["few of both", "easy at its target", "hard at its target", "both at their target"],
)
def test_exploration_goes_down_where_the_target_is_reached(easy, hard, wanted):
    """A twelfth may be easy and a sixth hard: a quarter in all."""
    groups = *[[1, 1]] * easy, *[[0, 0]] * hard, *[[0, 1]] * (12 - easy - hard)
    assert explored(SKIPPING, *groups, epochs=1.5) == pytest.approx(wanted)
    assert explored(SKIPPING, *groups, epochs=1.0) == (0.5, 0.5)


def test_in_the_compatible_variant_groups_of_zeros_leave_the_tally():
    outcome_Q, _ = COMPAT_SKIPPING.learn(COMPAT_SKIPPING.start(), rewards_of(*[[0, 0]] * 12), epochs=2)
    assert outcome_Q.tolist() == [HARD] * 12
    cases = (COMPAT_SKIPPING, [0, 0], 0.51), (SKIPPING, [0, 0], 0.49), (COMPAT_SKIPPING, [0.1, 0.1], 0.49)
    for skipping, group, hard in cases:
        assert explored(skipping, *[group] * 12)[1] == pytest.approx(hard)


def test_only_groups_whose_rewards_differ_count():
    groups = rewards_of([0, 1], [1, 1], [0.1] * 3, [1], [NAN, 1], [NAN])
    assert mixed(groups).tolist() == [True] + [False] * 5, "of one there is no variance"


@pytest.mark.parametrize(
    ("samples", "prompts", "last"),
    [(0, 384, False), (1200, 331, True), (2000, 64, True)],
    ids=["est 800", "est 331", "est 18"],
)
def test_adaptive_rounds_have_the_sizes_of_greso(samples, prompts, last):
    """2048 samples wanted in groups of 8, usual round 384, three in five groups without variance."""
    collected = Collected(wanted=256, usual=384, counted=samples // 8, rounds=1, last_rolled_out=400, last_counted=160)
    assert ROUNDS.size(collected) == RoundRequest(prompts=prompts, last=last)
