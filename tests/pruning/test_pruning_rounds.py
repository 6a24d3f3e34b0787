"""Rounds of rollouts: which groups count, how large the next round is, when it is over, and what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dppo.errors import ConfigError, RoundsError
from dppo.pruning import Collected, Request, Rounds, adaptive, deviating, fill, fixed, mixed

ROUNDS = Rounds(counts=deviating)


def groups(*pattern):
    """Rewards (P, 2) of groups that count (1) and groups that do not (0)."""
    return torch.tensor([[0.0, float(p)] for p in pattern])


def scripted(*rounds):
    """A rollout that gives these patterns, one per round, and records what it was asked for."""
    asked = []

    def roll_out(number, prompts):
        assert number == len(asked)
        asked.append(prompts)
        return groups(*rounds[number])

    return roll_out, asked


# Which groups count.

REWARDS = [
    [1.0, 0.0, 1.0, 0.0],
    [0.1, 0.1, 0.1, 0.1],
    [0.0, 0.0, 0.0, 0.1],
    [1.0, 1.0, 1.0, 1.0],
    [-2.0, -2.0, -2.0, -2.5],
]


def test_groups_count_when_their_population_deviation_is_positive():
    expected = [bool(np.std(row) > 1e-12) for row in REWARDS]
    assert deviating(torch.tensor(REWARDS)).tolist() == mixed(torch.tensor(REWARDS)).tolist() == expected


def test_equal_rewards_with_a_rounded_mean_do_not_count():
    """Taken literally, a deviation above 0 would let a group in for the rounding of its mean."""
    assert np.std([0.1] * 3) > 0
    assert not deviating(torch.tensor([[0.1] * 3], dtype=torch.float64)).any()


def test_a_group_of_one_counts_for_dapo_and_not_for_greso():
    assert deviating(torch.tensor([[0.0], [1.0]])).tolist() == [True, True]
    assert mixed(torch.tensor([[0.0], [1.0]])).tolist() == [False, False]


def test_rewards_that_are_missing_say_nothing():
    nan = float("nan")
    reward_PG = torch.tensor([[nan, 1.0, 0.0], [nan, 1.0, 1.0], [nan, nan, nan], [nan, nan, 1.0]])
    assert deviating(reward_PG).tolist() == [True, False, False, False]
    assert deviating(torch.tensor([[nan], [1.0]])).tolist() == [False, True]
    assert mixed(torch.tensor([[1, 0], [1, 1]])).tolist() == [True, False], "rewards may be integers"


def test_the_length_penalty_makes_groups_count_that_accuracy_alone_would_not():
    accuracy = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    penalised = accuracy + torch.tensor([[0.0, -0.5], [0.0, -0.5]])
    assert deviating(accuracy).tolist() == [False, True]
    assert deviating(penalised).tolist() == [True, True]


# The size of the next round.


def test_fixed_rounds_are_all_as_large():
    rounds = replace(ROUNDS, factor=1536 / 512)
    for collected in (
        Collected(wanted=512),
        Collected(wanted=512, counted=500, last_rolled_out=1536, last_counted=500),
    ):
        assert rounds.request(collected) == Request(prompts=1536)
    assert ROUNDS.request(Collected(wanted=16)) == Request(prompts=16)
    assert fixed(Collected(wanted=16), 5) == Request(prompts=5)


@pytest.mark.parametrize(
    ("samples", "prompts", "last"),
    [(0, 384, False), (1200, 331, True), (2000, 64, True)],
    ids=["est 800", "est 331", "est 18"],
)
def test_adaptive_rounds_have_the_sizes_of_greso(samples, prompts, last):
    """2048 samples wanted in groups of 8, usual round 384, three in five groups without variance."""
    collected = Collected(wanted=256, counted=samples // 8, rounds=1, last_rolled_out=400, last_counted=160)
    rounds = Rounds(counts=mixed, size=adaptive, factor=1.5)
    assert rounds.request(collected) == Request(prompts=prompts, last=last)


def test_adaptive_rounds_begin_with_the_usual_size_and_keep_it_when_nothing_counts():
    assert adaptive(Collected(wanted=256), 384) == Request(prompts=384)
    nothing = Collected(wanted=256, rounds=1, rolled_out=384, last_rolled_out=384, last_counted=0)
    assert adaptive(nothing, 384) == Request(prompts=384), "1 - a is 0: no division by it"


def test_adaptive_sizes_are_exact():
    collected = Collected(wanted=12, rounds=1, last_rolled_out=10, last_counted=3)
    assert int(12 / (1 - 0.7) * 1.25) == 49, "binary loses one here"
    assert adaptive(collected, 1000).prompts == 50


# A step.


def test_rounds_go_on_until_enough_groups_count():
    roll_out, asked = scripted([1, 0, 0], [0, 0, 0], [0, 1, 1])
    filled = fill(ROUNDS, 3, roll_out)
    assert asked == [3, 3, 3]
    assert filled.keep_P.nonzero()[:, 0].tolist() == [0, 7, 8]
    assert filled.collected == Collected(
        wanted=3, counted=3, rounds=3, rolled_out=9, last_rolled_out=3, last_counted=2
    )  # fmt: skip


def test_only_the_first_groups_are_kept():
    roll_out, _ = scripted([1, 0, 1], [1, 1, 1])
    filled = fill(ROUNDS, 3, roll_out)
    assert filled.keep_P.tolist() == [True, False, True, True, False, False]
    assert filled.collected.counted == 5 and int(filled.keep_P.sum()) == 3


def test_the_limit_is_an_error_and_never_a_truncation():
    roll_out, asked = scripted(*[[1, 0]] + [[0, 0]] * 9)
    with pytest.raises(RoundsError, match=r"after 10 rounds 1 of 20 groups .* needs 2\. Set max_rounds: 20 \(0 for no"):
        fill(ROUNDS, 2, roll_out)
    assert len(asked) == 10
    roll_out, asked = scripted(*[[0, 0]] * 14, [1, 1])
    assert fill(replace(ROUNDS, limit=0), 2, roll_out).collected.rounds == 15, "0 is no limit"
    roll_out, asked = scripted(*[[0, 0]] * 9, [1, 1])
    assert fill(ROUNDS, 2, roll_out).collected.rounds == 10, "the last round may fill it"


def test_a_step_on_what_there_is_at_the_limit():
    rounds = replace(ROUNDS, limit=2, at_limit="train")
    roll_out, _ = scripted([0, 1, 0], [0, 0, 0])
    assert fill(rounds, 3, roll_out).keep_P.nonzero()[:, 0].tolist() == [1]
    roll_out, _ = scripted([0, 0], [0, 0])
    with pytest.raises(RoundsError, match=r"0 of 4 groups .* needs 1"):
        fill(rounds, 2, roll_out)


def test_the_last_round_of_greso_may_leave_a_step_too_small():
    """Half of the first round counts, so 20 are thought enough for 8 missing, and the step has 11 of 16."""
    roll_out, asked = scripted([1, 0] * 8, [1] * 3 + [0] * 7)
    filled = fill(Rounds(counts=mixed, size=adaptive, factor=1.5), 16, roll_out)
    assert asked == [24, 20]
    assert int(filled.keep_P.sum()) == 11 and filled.collected.missing == 5


def test_the_description_says_what_happens_at_the_limit():
    assert "at most 10 rounds (an error there)" in str(ROUNDS)
    assert "then a step on those there are" in str(replace(ROUNDS, at_limit="train"))
    assert "without a limit" in str(replace(ROUNDS, limit=0))
    assert "ratio of two random numbers" in ROUNDS.bias


def test_bad_settings_are_refused_together():
    with pytest.raises(ConfigError, match=r"3 problems\n.*factor=0 must be.*\n.*limit=-1 must be.*\n.*at_limit='on'"):
        replace(ROUNDS, factor=0.0, limit=-1, at_limit="on")
