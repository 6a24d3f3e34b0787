"""GRESO: runs of easy and hard groups, what they are skipped at, and how much is explored."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from dppo.errors import CheckpointError, ConfigError, ShapeError
from dppo.pruning import (
    EASY,
    HARD,
    NEITHER,
    Exploration,
    PromptHistory,
    PromptStream,
    Skipping,
    by_mean,
    by_value,
    by_variance,
    keep_probability,
    learn,
    take_round,
)
from dppo.rng import Purpose, generator

SKIPPING = Skipping()
COMPAT = Skipping(streak=by_mean, tally=by_value)
START = Exploration.at_start(SKIPPING)


def history(size=8):
    return PromptHistory(np.arange(size, dtype=np.uint64))


def observe(kept, row, *outcomes):
    for outcome in outcomes:
        ones = torch.ones(1, 2)
        kept.update(torch.tensor([row]), ones, torch.ones(1), ones, 0, outcome_P=torch.tensor([outcome]))


# Probabilities.


@pytest.mark.parametrize(
    ("explore", "expected"),
    [
        (0.5, [1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.01, 0.01]),
        (0.05, [1, 0.05, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01]),
        (0.95, [1, 0.95, 0.9025, 0.857375, 0.81450625, 0.7737809375, 0.735091890625, 0.69833729609, 0.66342043129]),
    ],
)
def test_golden_keep_probabilities(explore, expected):
    assert keep_probability(torch.arange(9), explore, 0.01).tolist() == pytest.approx(expected, rel=1e-9)


# Runs.


def test_runs_are_of_the_most_recent_groups_of_one_kind():
    kept = history()
    observe(kept, 0, EASY, EASY, EASY)
    observe(kept, 1, HARD, HARD)
    observe(kept, 2, HARD, HARD, EASY)
    observe(kept, 3, EASY, NEITHER)
    observe(kept, 4, EASY, EASY, NEITHER, HARD)
    assert kept.streak(torch.arange(8)).tolist() == [3, -2, 1, 0, -1, 0, 0, 0]


def test_a_skipped_epoch_leaves_the_run_as_it_was():
    """Nothing is recorded for a prompt that is skipped: it stays as likely until it is rolled out again."""
    kept = history()
    observe(kept, 0, HARD)
    for step in range(1, 5):
        ones = torch.ones(1, 2)
        kept.update(torch.tensor([1]), ones, torch.ones(1), ones, step, outcome_P=torch.tensor([EASY]))
    assert kept.streak([0, 1]).tolist() == [-1, 4]
    observe(kept, 0, HARD)
    assert kept.streak([0]).tolist() == [-2]


def test_a_row_twice_in_one_update_counts_in_the_order_given():
    kept, ones = history(), torch.ones(4, 2)
    rows, outcome = torch.tensor([0, 1, 0, 1]), torch.tensor([EASY, EASY, EASY, HARD])
    kept.update(rows, ones, torch.ones(4), ones, 0, outcome_P=outcome)
    assert kept.streak([0, 1]).tolist() == [2, -1]


def test_groups_without_a_reward_leave_the_run_alone():
    kept, missing = history(), torch.full((1, 2), float("nan"))
    observe(kept, 0, HARD)
    kept.update(torch.tensor([0]), missing, torch.ones(1), torch.ones(1, 2), 0, outcome_P=torch.tensor([EASY]))
    assert kept.streak([0]).tolist() == [-1]


def test_runs_end_at_the_longest_that_is_kept():
    kept = history()
    kept._arrays["streak"][:2] = (32767, -32767)
    observe(kept, 0, EASY)
    observe(kept, 1, HARD)
    assert kept.streak([0, 1]).tolist() == [32767, -32767]


def test_an_outcome_of_another_length_changes_nothing():
    kept, ones = history(), torch.ones(1, 2)
    with pytest.raises(ShapeError, match="1 rows with outcome"):
        kept.update(torch.tensor([0]), ones, torch.ones(1), ones, 0, outcome_P=torch.tensor([1, 1]))
    assert kept.seen_share == 0


def test_runs_survive_a_save_and_files_without_them_are_refused(tmp_path: Path):
    kept = history()
    observe(kept, 0, HARD, HARD)
    kept.save(tmp_path / "new.npz")
    read = history()
    read.load(tmp_path / "new.npz")
    assert read.streak([0, 1]).tolist() == [-2, 0]

    with np.load(tmp_path / "new.npz") as file:
        arrays = {name: file[name] for name in file if name != "streak"}
    np.savez(tmp_path / "old.npz", **arrays)
    with pytest.raises(CheckpointError, match="streak"):
        read.load(tmp_path / "old.npz")


# What is easy, what is hard.

GROUPS = torch.tensor(
    [[1.0] * 4, [0.0] * 4, [0.1] * 4, [0.0, 0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 0.0], [1.0, 0.1, 0.1, 0.1]]
)


def test_by_variance_a_mixture_is_neither():
    assert by_variance(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, NEITHER, NEITHER, NEITHER]


def test_by_the_mean_a_mixture_of_small_rewards_is_hard():
    """What the code does, and only the compatible variant."""
    assert by_mean(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, HARD, NEITHER, NEITHER]
    one_right = torch.tensor([[1.0] + [0.0] * 15])
    assert by_mean(one_right, 0, 1).tolist() == [HARD] and by_variance(one_right, 0, 1).tolist() == [NEITHER]
    one_wrong = torch.tensor([[1.0] * 49 + [0.0]])
    assert by_mean(one_wrong, 0, 1).tolist() == [EASY] and by_variance(one_wrong, 0, 1).tolist() == [NEITHER]


def test_by_value_groups_of_zeros_are_neither():
    assert by_value(GROUPS, 0.0, 1.0).tolist() == [EASY, NEITHER, HARD, NEITHER, NEITHER, NEITHER]
    assert by_value(GROUPS.double(), 0.0, 1.0).tolist() == by_value(GROUPS, 0.0, 1.0).tolist()


@pytest.mark.parametrize(
    ("low", "high", "value", "expected"),
    [
        (0.0, 1.2, 1.0, EASY),
        (-1.0, 1.0, -0.5, HARD),
        (0.0, 0.0, 0.0, HARD),
        (2.0, 5.0, 3.5, HARD),
        (0.0, 1.0, 0.6, EASY),
    ],
    ids=["near the top", "near the bottom", "one reward seen", "in the middle", "above the middle"],
)
def test_easy_is_nearer_to_the_top_of_what_was_seen(low, high, value, expected):
    assert by_variance(torch.full((1, 3), value), low, high).tolist() == [expected]


def test_groups_without_a_reward_are_neither():
    assert by_variance(torch.full((1, 3), float("nan")), 0.0, 1.0).tolist() == [NEITHER]
    assert by_mean(torch.full((1, 3), float("nan")), 0.0, 1.0).tolist() == [NEITHER]


# Exploration.


def rewards(easy, hard, mixed):
    return torch.tensor([[1.0, 1.0]] * easy + [[0.0, 0.0]] * hard + [[0.0, 1.0]] * mixed)


@pytest.mark.parametrize(
    ("easy", "hard", "mixed", "expected"),
    [
        (0, 0, 12, (0.51, 0.51)),
        (1, 1, 10, (0.49, 0.51)),
        (0, 2, 10, (0.51, 0.49)),
        (1, 2, 9, (0.49, 0.49)),
    ],
    ids=["few of both", "easy at its target", "hard at its target", "both at their target"],
)
def test_exploration_goes_down_where_the_target_is_reached(easy, hard, mixed, expected):
    """A twelfth may be easy and a sixth hard: a quarter in all."""
    _, after = learn(SKIPPING, START, rewards(easy, hard, mixed), epochs=1.5)
    assert (after.easy, after.hard) == pytest.approx(expected)


def test_exploration_stays_in_the_first_epoch():
    for epochs, moved in ((0.1, False), (1.0, False), (1.01, True)):
        _, after = learn(SKIPPING, START, rewards(4, 4, 0), epochs=epochs)
        assert (after.easy != 0.5) == (after.hard != 0.5) == moved


def test_exploration_stays_within_its_bounds():
    low = high = START
    for _ in range(60):
        _, low = learn(SKIPPING, low, rewards(4, 4, 0), epochs=2)
        _, high = learn(SKIPPING, high, rewards(0, 0, 4), epochs=2)
    assert (low.easy, low.hard, high.easy, high.hard) == (0.05, 0.05, 0.95, 0.95)


def test_in_the_compatible_variant_groups_of_zeros_leave_the_tally():
    """They are skipped as hard all the same, while the probability for hard prompts rises."""
    outcome_P, after = learn(COMPAT, START, rewards(0, 12, 0), epochs=2)
    assert outcome_P.tolist() == [HARD] * 12 and after.hard == pytest.approx(0.51)
    _, variance = learn(SKIPPING, START, rewards(0, 12, 0), epochs=2)
    assert variance.hard == pytest.approx(0.49)
    _, formatted = learn(COMPAT, START, torch.full((12, 2), 0.1), epochs=2)
    assert formatted.hard == pytest.approx(0.49)


def test_the_range_of_rewards_is_remembered():
    """A step without a right answer still knows that there are some: its wrong groups are hard, its right ones easy."""
    outcome_P, first = learn(SKIPPING, START, rewards(0, 2, 0), epochs=0.5)
    assert outcome_P.tolist() == [HARD] * 2 and (first.low, first.high) == (0.0, 0.0)
    _, second = learn(SKIPPING, first, rewards(0, 0, 1), epochs=0.6)
    outcome_P, third = learn(SKIPPING, second, rewards(2, 0, 0), epochs=0.7)
    assert outcome_P.tolist() == [EASY] * 2 and (third.low, third.high) == (0.0, 1.0)
    nothing = torch.full((2, 2), float("nan"))
    assert learn(SKIPPING, START, nothing, epochs=2) == (pytest.approx(torch.zeros(2)), START)
    outcome_P, fourth = learn(SKIPPING, third, nothing, epochs=0.8)
    assert outcome_P.tolist() == [NEITHER] * 2 and (fourth.low, fourth.high) == (0.0, 1.0)


def test_bad_settings_are_refused_together():
    with pytest.raises(ConfigError, match=r"2 problems\n.*target=0 is out of range.*\n.*floor=2 is out of range"):
        Skipping(target=Fraction(0), floor=2.0)


# Rounds.


def drawn(kept, prompts, seed=0, size=8, skipping=SKIPPING, exploration=START):
    stream = PromptStream(size, seed=0, shuffle=False)
    return take_round(stream, kept, prompts, skipping, exploration, generator(seed, Purpose.PROMPT_SKIP)), stream


def test_a_round_takes_as_many_rows_as_it_needs():
    kept = history()
    for row in range(0, 8, 2):
        observe(kept, row, *[HARD] * 8)
    block, stream = drawn(kept, 4)
    assert block.keep_P.sum() == 4 and block.keep_P[-1], "it ends with the row that fills it"
    assert block.row_P.tolist() == list(range(len(block.row_P))) and stream.offset == len(block.row_P) % 8
    assert block.prob_P.tolist() == pytest.approx(([0.01, 1.0] * 4)[: len(block.row_P)])
    assert block.row_P[block.keep_P].tolist() == [1, 3, 5, 7], "a prompt without a run is always rolled out"


def test_without_skipping_a_round_is_the_next_rows():
    kept = history()
    observe(kept, 0, *[HARD] * 8)
    block, stream = drawn(kept, 5, skipping=None)
    assert block.row_P.tolist() == [0, 1, 2, 3, 4] and block.keep_P.all() and (block.prob_P == 1).all()
    assert stream.offset == 5


def test_prompts_are_skipped_as_often_as_they_should_be():
    kept = history(3)
    observe(kept, 0, EASY)
    observe(kept, 1, HARD, HARD)
    explored = replace(START, easy=0.7, hard=0.6)
    rolled_out, offered = np.zeros(3), np.zeros(3)
    for seed in range(600):
        block, _ = drawn(kept, 3, seed=seed, size=3, exploration=explored)
        np.add.at(offered, block.row_P.numpy(), 1)
        np.add.at(rolled_out, block.row_P[block.keep_P].numpy(), 1)
    wanted = np.array([0.7, 0.36, 1.0])
    spread = np.sqrt(wanted * (1 - wanted) / offered)
    assert (np.abs(rolled_out / offered - wanted) <= 4 * spread).all()


def test_easy_and_hard_are_drawn_separately():
    """The first number of a prompt is held against its easy run, the second against its hard run."""
    numbers = generator(5, Purpose.PROMPT_SKIP).random((8, 2))
    easy, hard = history(), history()
    for row in range(8):
        observe(easy, row, EASY)
        observe(hard, row, HARD)
    for kept, column in ((easy, 0), (hard, 1)):
        block, _ = drawn(kept, 2, seed=5)
        assert block.keep_P.tolist() == (numbers[: len(block.row_P), column] >= 0.5).tolist()


def test_a_round_does_not_depend_on_how_far_it_looks_ahead():
    """Draws belong to places of the stream: more prompts asked for begin with the same ones."""
    kept = history()
    for row in range(8):
        observe(kept, row, HARD)
    few, _ = drawn(kept, 2, seed=3)
    many, _ = drawn(kept, 20, seed=3)
    assert torch.equal(many.keep_P[: len(few.keep_P)], few.keep_P)
    assert torch.equal(many.row_P[: len(few.row_P)], few.row_P)


def test_equal_seeds_give_equal_rounds():
    kept = history()
    observe(kept, 0, EASY)
    blocks = [drawn(kept, 4, seed=seed)[0] for seed in (1, 1)]
    assert torch.equal(blocks[0].keep_P, blocks[1].keep_P)
