"""Rounds of rollouts: which prompts a round has, how large it is, when it is over, and which groups are kept."""

from dataclasses import replace

import pytest
import torch
from drafts import taken, with_streaks
from refusals import refused

from dppo.errors import ConfigError, RoundsError
from dppo.pruning import RoundRequest, Rounds
from dppo.pruning.rounds import Collected
from dppo.rng import step_streams
from dppo.step import whole_block
from dppo.step.records import in_rounds
from dppo.types import Block, Rewards


def differing(rewards):
    """Groups of two that count: their rewards differ."""
    return rewards.total_N.view(-1, 2).diff().abs()[:, 0] > 0


ROUNDS = Rounds(counts=differing)


def scripted(*rounds):
    """A rollout that gives these groups, a pattern per round, 1 for each that counts; records what it was asked."""
    asked = []

    def roll_out(number, prompts):
        assert number == len(asked)
        asked.append(prompts)
        return Rewards.of_groups(torch.tensor([[0.0, float(counts)] for counts in rounds[number]]))

    return roll_out, asked


def fill(rounds, wanted, roll_out):
    """The groups that a step of rounds trains on, and its numbers."""

    def one_round(number, prompts, rng):
        rewards = roll_out(number, prompts)
        found = whole_block(rewards.groups, 1)
        return Block(candidates=found.candidates, draw=found.draw), rewards

    prompts = in_rounds(rounds, wanted, one_round, step_streams(0, 0))
    return prompts.weight_Q > 0, prompts.collected


def test_rounds_go_on_until_enough_groups_count():
    roll_out, asked = scripted([1, 0, 0], [0, 0, 0], [0, 1, 1])
    keep_Q, collected = fill(ROUNDS, 3, roll_out)
    assert asked == [3, 3, 3]
    assert keep_Q.nonzero()[:, 0].tolist() == [0, 7, 8]
    numbers = {"counted": 3, "rounds": 3, "rolled_out": 9, "last_rolled_out": 3, "last_counted": 2}
    assert collected == Collected(wanted=3, usual=3, **numbers)


def test_the_limit_is_an_error_and_never_a_truncation():
    roll_out, asked = scripted(*[[1, 0]] + [[0, 0]] * 9)
    with refused(RoundsError, "10 rounds", "1 of 20", "needs 2", "max_rounds: 20"):
        fill(ROUNDS, 2, roll_out)
    assert len(asked) == 10
    roll_out, asked = scripted(*[[0, 0]] * 14, [1, 1])
    assert fill(replace(ROUNDS, limit=0), 2, roll_out)[1].rounds == 15, "0 is no limit"
    roll_out, asked = scripted(*[[0, 0]] * 9, [1, 1])
    assert fill(ROUNDS, 2, roll_out)[1].rounds == 10, "the last round may fill it"


def test_a_step_on_what_there_is_at_the_limit():
    rounds = replace(ROUNDS, limit=2, at_limit="train")
    roll_out, _ = scripted([0, 1, 0], [0, 0, 0])
    assert fill(rounds, 3, roll_out)[0].nonzero()[:, 0].tolist() == [1]
    roll_out, _ = scripted([0, 0], [0, 0])
    with refused(RoundsError, "0 of 4", "needs 1"):
        fill(rounds, 2, roll_out)


def test_a_round_that_is_said_to_be_the_last_is_unless_nothing_counts_yet():
    def last_from_the_second_on(collected):
        return RoundRequest(prompts=collected.usual, last=collected.rounds > 0)

    rounds = replace(ROUNDS, size=last_from_the_second_on)
    roll_out, asked = scripted([1, 0, 0], [0, 0, 0], [1, 1, 1])
    assert fill(rounds, 3, roll_out)[1].counted == 1 and len(asked) == 2
    roll_out, asked = scripted([0, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1])
    assert fill(rounds, 3, roll_out)[1].counted == 1 and len(asked) == 3


def test_bad_settings_are_refused_together():
    with refused(ConfigError, "3 problems", "factor=0", "limit=-1", "at_limit='on'"):
        replace(ROUNDS, factor=0.0, limit=-1, at_limit="on")


def test_a_round_takes_as_many_rows_as_it_needs():
    block, stream = taken(with_streaks(*[-20, 0] * 4), 4)
    assert block.candidates.row_P.tolist() == list(range(8)) and stream.epochs == 1
    assert block.row_Q.tolist() == [1, 3, 5, 7], "a prompt without a streak is always rolled out"
    assert block.draw.prob_N.tolist() == pytest.approx([0.01, 1.0] * 4)
    assert torch.equal(block.draw.weight_N, block.draw.keep_N.double()), "no weight makes up for one that is not"
    assert block.candidates.seen_P.tolist() == [True, False] * 4


def test_a_round_does_not_depend_on_how_far_it_looks_ahead():
    few, many = (taken(with_streaks(*[1] * 8), prompts, seed=3)[0] for prompts in (2, 20))
    assert torch.equal(many.draw.keep_N[: len(few.draw.keep_N)], few.draw.keep_N)
    assert torch.equal(many.candidates.row_P[: len(few.candidates.row_P)], few.candidates.row_P)


def test_a_list_without_prompts_is_refused():
    with refused(RoundsError, "no prompt to roll out"):
        in_rounds(ROUNDS, 2, lambda number, prompts, rng: None, step_streams(0, 0))
