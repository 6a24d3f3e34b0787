"""Prompts before a rollout: streams and blocks, rounds, sizes of groups by history, and values of a reference."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import rewards_of, tensor
from drafts import Run, taken, with_streaks
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, warned

from dppo.context import Expected
from dppo.errors import ConfigError, DataError, FileError, RoundsError, ShapeError
from dppo.methods import METHODS
from dppo.pruning import GroupSizes, PromptHistory, PromptPruning, PromptStream, PromptValues
from dppo.pruning.prior import prompt_key, read_values
from dppo.pruning.probabilities import proportional, threshold, uniform
from dppo.pruning.prompts import fill_block, whole_numbers
from dppo.pruning.rounds import Collected, RoundRequest, Rounds
from dppo.rng import generator, step_streams
from dppo.step import whole_block
from dppo.step.records import in_rounds
from dppo.types import Block, Rewards


def history_of(seen: int) -> PromptHistory:
    """A history of 60 prompts, the first ``seen`` of which were rolled out once, a third of them without any signal."""
    rng, history = np.random.default_rng(0), PromptHistory(np.arange(60, dtype=np.uint64))
    signal = torch.from_numpy(rng.random(seen) * (rng.random(seen) > 0.33))
    tokens = torch.from_numpy(rng.integers(10, 500, (seen, 4)))
    if seen:
        history.update(np.arange(seen), Rewards.of_groups(torch.ones(seen, 4)), signal, tokens.flatten(), 0)
    return history


def test_each_epoch_has_every_row_once_in_an_order_of_its_own():
    stream = PromptStream(40, seed=3)
    epochs = [stream.take(40) for _ in range(4)]
    assert all(torch.equal(rows.sort().values, torch.arange(40)) for rows in epochs)
    assert len({tuple(rows.tolist()) for rows in epochs}) == 4
    assert epochs[0].dtype == torch.int64


@given(
    size=st.integers(1, 12),
    counts=st.lists(st.integers(0, 30), max_size=6),
    cut=st.integers(0, 6),
    shuffle=st.booleans(),
)
def test_resuming_anywhere_equals_not_stopping_and_peeking_moves_nothing(size, counts, cut, shuffle):
    whole, before, after = (PromptStream(size, 1, shuffle) for _ in range(3))
    expected = [whole.take(count).tolist() for count in counts]
    found = [before.take(count).tolist() for count in counts[:cut]]
    state = before.state_dict()
    assert set(state) == {"epoch", "offset"} and 0 <= state["offset"] < size
    after.load_state_dict(state)
    for count in counts[cut:]:
        found.append(after.peek(count).tolist())
        assert after.take(count).tolist() == found[-1]
    assert found == expected
    assert after.state_dict() == whole.state_dict()


def test_a_stream_that_stood_beyond_the_rows_of_a_smaller_dataset_begins_the_next_epoch():
    before, after = PromptStream(10, seed=1), PromptStream(6, seed=1)
    before.take(18)
    with warned("prompt 8 of an epoch, and the dataset has 6 now"):
        after.load_state_dict(before.state_dict())
    assert after.state_dict() == {"epoch": 2, "offset": 0}


@given(
    seen=st.integers(0, 60),
    prompts=st.integers(1, 20),
    rate=st.sampled_from([0.0, 0.2, 0.5, 0.75]),
    rule=st.sampled_from([proportional, threshold, uniform]),
    budget=st.sampled_from(["rows", "tokens"]),
    start=st.integers(0, 59),
)
def test_a_filled_block_expects_exactly_the_prompts_of_a_batch(seen, prompts, rate, rule, budget, start):
    stream, history = PromptStream(60, 2), history_of(seen)
    stream.take(start)
    pruning = PromptPruning(rate=rate, rule=rule, budget=budget, floor=0.2)
    upcoming = stream.peek(60)
    block, now = fill_block(stream, history, pruning, prompts, 1)
    row_M = block.row_P
    assert torch.equal(row_M, upcoming[: len(row_M)])
    assert prompts <= len(row_M) <= min(round(prompts / (1 - rate)), 60)
    assert stream.epoch * 60 + stream.offset == start + len(row_M)
    draws = [now.draw(block, generator(seed)) for seed in range(3)]
    assert all(draw.keep_N.sum() == prompts for draw in draws)
    assert draws[0].prob_N.sum().item() == pytest.approx(prompts, abs=1e-9)
    assert all(draw.keep_N[~block.seen_P].all() for draw in draws)
    assert draws[0].prob_N.min() >= 0.2 - 1e-9


ROUNDS = Rounds(counts=lambda rewards: rewards.total_N.view(-1, 2).diff().abs()[:, 0] > 0)
"""Groups of two count if their rewards differ."""


def fill(wanted, *scripted, rounds=ROUNDS):
    """The groups that a step trains on, its numbers, and the prompts that each round was asked for.

    Rounds give these groups, a pattern per round, 1 for each that counts.
    """
    asked = []

    def one_round(number, prompts, rng):
        assert number == len(asked)
        asked.append(prompts)
        rewards = Rewards.of_groups(torch.tensor([[0.0, float(counts)] for counts in scripted[number]]))
        found = whole_block(rewards.groups, 1)
        return Block(candidates=found.candidates, draw=found.draw), rewards

    prompts = in_rounds(rounds, wanted, one_round, step_streams(0, 0))
    return (prompts.weight_Q > 0).nonzero()[:, 0].tolist(), prompts.collected, asked


def test_rounds_go_on_until_enough_groups_count():
    kept, collected, asked = fill(3, [1, 0, 0], [0, 0, 0], [0, 1, 1])
    assert asked == [3, 3, 3] and kept == [0, 7, 8]
    numbers = {"counted": 3, "rounds": 3, "rolled_out": 9, "last_rolled_out": 3, "last_counted": 2}
    assert collected == Collected(wanted=3, usual=3, **numbers)


def test_the_limit_is_an_error_and_never_a_truncation_unless_that_is_asked_for():
    with refused(RoundsError, "10 rounds", "1 of 20", "needs 2", "max_rounds: 20"):
        fill(2, [1, 0], *[[0, 0]] * 10)
    assert fill(2, *[[0, 0]] * 14, [1, 1], rounds=replace(ROUNDS, limit=0))[1].rounds == 15, "0 is no limit"
    assert fill(2, *[[0, 0]] * 9, [1, 1])[1].rounds == 10, "the last round may fill it"
    cut_off = replace(ROUNDS, limit=2, at_limit="train")
    assert fill(3, [0, 1, 0], [0, 0, 0], rounds=cut_off)[0] == [1]
    with refused(RoundsError, "0 of 4", "needs 1"):
        fill(2, [0, 0], [0, 0], rounds=cut_off)
    with refused(RoundsError, "no prompt to roll out"):
        in_rounds(ROUNDS, 2, lambda number, prompts, rng: None, step_streams(0, 0))


def test_a_round_that_is_said_to_be_the_last_is_unless_nothing_counts_yet():
    def last_from_the_second_on(collected):
        return RoundRequest(prompts=collected.usual, last=collected.rounds > 0)

    rounds = replace(ROUNDS, size=last_from_the_second_on)
    for scripted, count in (([1, 0, 0], [0, 0, 0]), 2), (([0, 0, 0], [0, 0, 0], [0, 1, 0]), 3):
        _, collected, asked = fill(3, *scripted, [1, 1, 1], rounds=rounds)
        assert collected.counted == 1 and len(asked) == count


def test_a_round_takes_as_many_rows_as_it_needs():
    block, stream = taken(with_streaks(*[-20, 0] * 4), 4)
    assert block.candidates.row_P.tolist() == list(range(8)) and stream.epochs == 1
    assert block.row_Q.tolist() == [1, 3, 5, 7], "a prompt without a streak is always rolled out"
    assert block.draw.prob_N.tolist() == pytest.approx([0.01, 1.0] * 4)
    assert torch.equal(block.draw.weight_N, block.draw.keep_N.double()), "no weight makes up for one that is not"
    assert block.candidates.seen_P.tolist() == [True, False] * 4
    few, many = (taken(with_streaks(*[1] * 8), prompts, seed=3)[0] for prompts in (2, 20))
    ahead = len(few.draw.keep_N)
    assert torch.equal(many.draw.keep_N[:ahead], few.draw.keep_N), "however far it looks ahead"
    assert torch.equal(many.candidates.row_P[:ahead], few.candidates.row_P)


def expected(*variance):
    variance_QF = torch.tensor(variance, dtype=torch.float64)[:, None]
    return Expected(mean_QF=variance_QF, variance_QF=variance_QF, strength_QF=variance_QF)


@given(
    wanted=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20),
    least=st.integers(0, 2),
    most=st.integers(2, 9),
    share=st.floats(0, 1),
)
def test_whole_numbers_have_the_sum_asked_for_within_the_limits(wanted, least, most, share):
    total = round(len(wanted) * (least + share * (most - least)))
    found = whole_numbers(torch.tensor(wanted, dtype=torch.float64), total, least=least, most=most)
    assert int(found.sum()) == total and int(found.min()) >= least and int(found.max()) <= most
    order = torch.argsort(torch.tensor(wanted), stable=True)
    assert (found[order].diff() >= -1).all(), "never two fewer where more is wanted"


def test_without_evenness_the_variance_is_the_least_of_all_sizes():
    """The sum of V / n over every way to give nine completions to three prompts."""
    variance = (0.25, 0.04, 0.01)
    found = GroupSizes(evenness=0.0)(expected(*variance), torch.ones(3), 3)
    every = [sizes for sizes in itertools.product(range(1, 8), repeat=3) if sum(sizes) == 9]
    best = min(every, key=lambda sizes: sum(v / n for v, n in zip(variance, sizes, strict=True)))
    assert found.tolist() == list(best)
    wrong_twin = whole_numbers(torch.tensor(variance).double(), 9, least=1, most=16)  # by V, not by its root
    assert wrong_twin.tolist() != list(best)


def test_long_answers_get_fewer_and_settled_prompts_what_evenness_leaves_them():
    long = GroupSizes(evenness=0.0)(expected(0.2, 0.2), torch.tensor([10.0, 90.0]), 4)
    assert long.tolist() == [6, 2]
    for sizes, wanted in (
        (GroupSizes(evenness=0.0, most=99), [13] * 2 + [1] * 6),
        (GroupSizes(evenness=1.0), [4] * 8),
        (GroupSizes(evenness=0.5), [10] * 2 + [2] * 6),
        (GroupSizes(evenness=0.0, most=8), [8] * 2 + [3] * 4 + [2] * 2),
    ):
        assert sizes(expected(0.25, 0.25, 0, 0, 0, 0, 0, 0), torch.ones(8), 4).tolist() == wanted
    assert GroupSizes()(expected(0.0, 0.0), torch.ones(2), 4).tolist() == [4, 4], "nothing known"


def test_fields_out_of_range_are_named_together():
    with refused(ConfigError, "evenness=1.5", "most=0"):
        GroupSizes(evenness=1.5, most=0)
    with refused(ConfigError, "3 problems", "factor=0", "limit=-1", "at_limit='on'"):
        replace(ROUNDS, factor=0.0, limit=-1, at_limit="on")


REWARDS = [[1.0, 1, 1, 0], [0.0, 0], [1.0], [0.0, 1, 0, 0]]
IDS = np.array([2**64 - 1, 7, 2**53 + 1, 2**53], dtype=np.uint64)


def file_of(path):
    for value, (key, rewards) in enumerate(zip(IDS, REWARDS, strict=True)):
        line = json.dumps({"prompt": prompt_key(int(key)), "value": float(value), "rewards": rewards})
        path.write_text((path.read_text() if value else "") + line + "\n")
    return path


def test_values_go_to_their_prompts_in_any_order_and_to_repeated_rows(tmp_path):
    """Two identities that JSON's numbers would take for one are two."""
    found = read_values(file_of(tmp_path / "v.jsonl"), IDS[[3, 0, 2, 2]])
    assert found.value_P.tolist() == [3.0, 0.0, 2.0, 2.0]
    assert found.count_P.tolist() == [4, 4, 1, 1] and found.mean_P.tolist() == [0.25, 0.75, 1, 1]
    assert float(int(IDS[2])) == float(int(IDS[3])), "the wrong twin: keys as floats"


def test_the_prior_is_a_beta_distribution_that_completions_move(tmp_path):
    """(a, b) = (k + 2 m, n - k + 2 (1 - m)), then + right and + wrong, by hand."""
    values, rows = read_values(file_of(tmp_path / "v.jsonl"), IDS), torch.arange(4)
    right_P, count_P = tensor([3, 0, 1, 1]), tensor([4, 2, 1, 4])
    a, b = right_P + 2 * 5 / 11, count_P - right_P + 2 * (1 - 5 / 11)
    prior = values.expected(rows)
    torch.testing.assert_close(prior.mean_QF[:, 0], a / (a + b))
    torch.testing.assert_close(prior.variance_QF[:, 0], a * b / (a + b) ** 2)
    torch.testing.assert_close(prior.strength_QF[:, 0], a + b + 1)
    assert ((prior.mean_QF > 0) & (prior.mean_QF < 1)).all(), "no prompt is taken for certain"
    history = PromptHistory(IDS, half_life=1e12)
    history.update(torch.tensor([1]), rewards_of([1, 1, 0]), torch.ones(1), torch.ones(3), 0)
    after = history.expected(rows, 0, prior)
    torch.testing.assert_close(after.mean_QF[1, 0], (a[1] + 2) / (a[1] + b[1] + 3))
    torch.testing.assert_close(after.mean_QF[0], prior.mean_QF[0])
    assert not torch.allclose(history.expected(rows, 0).mean_QF[0], prior.mean_QF[0]), "the wrong twin: no prior"


def test_values_are_the_prior_of_a_prompt_until_its_first_visit(tmp_path):
    values = read_values(file_of(tmp_path / "v.jsonl"), IDS)
    source, plain = Run.over(4, METHODS["grpo_history"], prompts=4, values=values), PromptHistory(IDS, half_life=1e9)
    for each in (source.history, plain):
        each.update(torch.tensor([0, 2]), rewards_of([1, 0], [1, 1]), torch.ones(2), torch.ones(4), 0)
    prompts = source.block(1, generations=2)
    seen_Q = (prompts.row_Q == 0) | (prompts.row_Q == 2)
    own, before = plain.expected(prompts.row_Q, 1), values.expected(prompts.row_Q)
    assert int(seen_Q.sum()) == 2
    for name in ("mean_QF", "variance_QF", "strength_QF"):
        found = getattr(prompts.context.expected, name)
        torch.testing.assert_close(found[seen_Q], getattr(own, name)[seen_Q])
        torch.testing.assert_close(found[~seen_Q], getattr(before, name)[~seen_Q])
        assert not torch.allclose(getattr(own, name)[~seen_Q], getattr(before, name)[~seen_Q])


def test_files_that_cannot_be_used_are_errors_with_their_line(tmp_path):
    with refused(FileError, "cannot be read"):
        read_values(tmp_path / "none.jsonl", IDS)
    file = file_of(tmp_path / "v.jsonl")
    with refused(DataError, "1 of 5", "row 4"):
        read_values(file, np.append(IDS, np.uint64(1)))
    file.write_text(file.read_text() + '{"half')
    with refused(FileError, "line 5 is damaged"):
        read_values(file, IDS)
    one = torch.ones(2, dtype=torch.float64)
    with refused(ShapeError, "square_P has shape"):
        PromptValues(value_P=one, count_P=one, mean_P=one, square_P=torch.ones(3))
    with refused(DataError, "one sample"):
        PromptValues(value_P=one, count_P=one * 0, mean_P=one, square_P=one)
