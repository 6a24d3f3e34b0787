"""Which prompts a step rolls out: blocks and rounds, what is learned from them, and runs that go on after a stop."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from drafts import draft_of
from pruning_enumeration import boxes_of_level

from dppo.errors import CheckpointError, DataError, DesignError, RoundsError, ShapeError
from dppo.methods import METHODS
from dppo.methods.greso import EASY, HARD, StreakSkipping
from dppo.pruning import Auto, PromptHistory, PromptPruning, PromptStream
from dppo.rng import Purpose, step_streams
from dppo.step import PromptSource, drawn_block, whole_block
from dppo.step.prompts import HISTORY_FILE
from dppo.step.records import joined
from dppo.types import Block, Candidates, Draw, Rewards

SIZE, PROMPTS, GROUP, SEED = 24, 4, 3, 6
DPPO, DAPO, GRESO = METHODS["dppo"].with_rates(prompt=0.5), METHODS["dapo"], METHODS["greso"]
AUTO = replace(DPPO, prompts=PromptPruning(rate=0.8, floor=0.2, auto=Auto(fewest=8, least_gain=1.0)))


def source(method=DPPO, *, size=SIZE, prompts=PROMPTS, seed=SEED, fill=False, identities=None):
    identities = np.arange(size, dtype=np.uint64) if identities is None else identities
    history = PromptHistory(identities, half_life=1e9)
    return PromptSource(PromptStream(size, seed), history, method, prompts=prompts, fill=fill)


def answers(row_Q):
    """Rewards of groups, a function of the dataset row: rows that are multiples of three are flat, low or high."""
    flat_Q = row_Q % 3 == 0
    reward_QG = torch.where(flat_Q, (row_Q % 2).double(), 0.0)[:, None].repeat(1, GROUP)
    reward_QG[:, 0] += (~flat_Q).double() * (1 + row_Q / 100)
    return Rewards.of_groups(reward_QG)


def taught(run, steps, *, rounds=False, first=0):
    """The prompts of some steps, each of which the history learns from."""
    found = []
    for step in range(first, first + steps):
        if rounds:
            asked = []
            prompts = run.rounds(step, lambda number, block, asked=asked: answers(asked.append(block) or block.row_Q))
        else:
            prompts = run.block(step, generations=GROUP)
        rewards = answers(prompts.row_Q)
        run.learn(draft_of(run.method, prompts, rewards, tokens=7), step)
        found.append(prompts)
    return found


def same(first, second) -> bool:
    """Whether two steps have the same bits."""
    pairs = [(first, second), (first.draw, second.draw), (first.candidates, second.candidates)]
    names = ("row_Q", "prob_Q", "weight_Q", "keep_N", "prob_N", "weight_N", "row_P", "signal_P", "tokens_P", "seen_P")
    return all(
        torch.equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in names if hasattr(a, name)
    ) and (first.sequences, first.collected) == (second.sequences, second.collected)


# Blocks.


def test_the_first_epoch_rolls_everything_out_and_the_second_half_of_it():
    run = source()
    steps = taught(run, 12)
    assert all(prompts.kept_share == 1 and (prompts.weight_Q == 1).all() for prompts in steps[:6])
    assert sorted(torch.cat([prompts.row_Q for prompts in steps[:6]]).tolist()) == list(range(SIZE))
    for prompts in steps[6:]:
        assert len(prompts.row_Q) == 2 and prompts.kept_share == 0.5 and prompts.seen_share == 1
        assert prompts.sequences == PROMPTS * GROUP, "a denominator counts those that were not rolled out"
        assert torch.equal(prompts.weight_Q, 1 / prompts.prob_Q) and prompts.collected is None
        assert torch.equal(prompts.row_Q, prompts.candidates.row_P[prompts.draw.keep_N])
    assert run.figures == {"candidates/epoch": 2.0}, "12 visits are too few for a ceiling"


def test_the_mean_weight_of_every_candidate_of_a_block_is_one():
    """Over every real draw of a step in the second epoch. Weights left out are the wrong twin."""
    run = source()
    taught(run, 7)
    candidates = run.history.candidates(run.stream.peek(PROMPTS), 7)
    pruning, weighted, counted = DPPO.prompts, torch.zeros(PROMPTS), torch.zeros(PROMPTS)
    boxes = boxes_of_level(pruning, candidates)
    for box in boxes:
        prompts = drawn_block(Block(candidates=candidates, draw=pruning.draw(candidates, box.rng())), GROUP)
        keep_P = prompts.draw.keep_N
        weighted = weighted.double().index_add(0, keep_P.nonzero()[:, 0], box.chance * prompts.weight_Q)
        counted = counted + box.chance * keep_P
    assert len(boxes) > 1
    torch.testing.assert_close(weighted, torch.ones(PROMPTS, dtype=torch.float64), rtol=1e-12, atol=0)
    assert (counted - 1).abs().max() > 0.2


def test_a_denominator_counts_the_completions_of_every_candidate_whatever_their_number():
    run = source()
    block = Block(candidates=run.history.candidates(torch.arange(3), 0), draw=Draw(
        keep_N=torch.tensor([True, False, True]), prob_N=torch.tensor([1, 0.5, 1]), weight_N=torch.tensor([1.0, 0, 1])
    ))  # fmt: skip
    assert drawn_block(block, 4).sequences == 12
    uneven = drawn_block(block, 4, torch.tensor([2, 6]))
    assert uneven.sequences == 12 and uneven.weight_Q.tolist() == pytest.approx([2.0, 4 / 6]), "every prompt alike"
    with pytest.raises(ShapeError, match=r"size_Q is \[2, 8, 4\], expected 2 numbers >= 1"):
        drawn_block(block, 4, torch.tensor([2, 8, 4]))


def test_the_draw_of_a_block_is_the_steps_own_stream():
    run = source()
    taught(run, 6)
    candidates = run.history.candidates(run.stream.peek(PROMPTS), 6)
    by_hand = DPPO.prompts.draw(candidates, step_streams(SEED, 6)(Purpose.PROMPT_DRAW))
    assert torch.equal(run.block(6, generations=GROUP).draw.weight_N, by_hand.weight_N)


def test_the_number_rolled_out_can_be_raised_to_a_multiple():
    run = source(prompts=8)
    taught(run, 3)
    assert len(run.block(3, generations=GROUP, multiple=8).row_Q) == 8
    assert len(run.block(4, generations=GROUP, multiple=3).row_Q) == 6
    with pytest.raises(DesignError, match=r"multiple of 9 prompts.*the block has 8"):
        run.block(5, generations=GROUP, multiple=9)


def test_rates_follow_the_share_of_training_done():
    run = source(METHODS["infobatch"])
    taught(run, 6)
    assert run.block(6, generations=GROUP, done=0.9).kept_share == 1
    assert run.block(7, generations=GROUP, done=0.5).kept_share < 1


def test_filled_blocks_grow_until_as_many_prompts_as_usual_are_rolled_out():
    run = source(fill=True)
    steps = taught(run, 12)
    assert all(len(prompts.row_Q) == PROMPTS for prompts in steps)
    longer = [len(prompts.candidates.row_P) for prompts in steps]
    assert longer[:6] == [PROMPTS] * 6 and max(longer) == 2 * PROMPTS, "up to 1 / (1 - rate) as many candidates"
    assert all(prompts.sequences == size * GROUP for prompts, size in zip(steps, longer, strict=True))
    assert run.stream.epochs > 2


def test_a_dataset_smaller_than_a_block_is_refused_with_what_to_set():
    with pytest.raises(DataError, match=r"has 3 prompts, fewer than the 4.*generation_batch_size to at most 3"):
        source(size=3)


def test_a_prompt_is_drawn_less_often_the_less_it_gave():
    """Rows that are multiples of three were flat: their signal is 0, and they are at the floor."""
    run = source(replace(DPPO, prompts=PromptPruning(rate=0.5, floor=0.2)), prompts=12)
    taught(run, 4)
    prompts = run.block(4, generations=GROUP)
    flat_P = prompts.candidates.row_P % 3 == 0
    assert prompts.draw.prob_N[flat_P].max() < prompts.draw.prob_N[~flat_P].min()
    assert (prompts.draw.prob_N >= 0.2 - 1e-12).all()


# What is learned.


def test_what_a_step_gave_is_in_the_history_afterwards():
    run = source()
    (prompts,) = taught(run, 1)
    seen_P = run.history.candidates(torch.arange(SIZE), 1).seen_P
    assert sorted(seen_P.nonzero()[:, 0].tolist()) == sorted(prompts.row_Q.tolist())
    assert run.learned is None and (run.history.streak(torch.arange(SIZE)) == 0).all()


def test_a_rule_that_skips_learns_what_groups_were_and_how_much_to_explore():
    run = source(GRESO)
    taught(run, 8, rounds=True)
    kinds = run.history.streak(torch.arange(SIZE)).sign()
    expected = torch.where(torch.arange(SIZE) % 3 == 0, torch.where(torch.arange(SIZE) % 2 == 1, EASY, HARD), 0)
    assert torch.equal(kinds, expected)
    assert run.learned.low == 0.0 and run.learned.high == pytest.approx(1 + 23 / 100)
    assert run.figures == {
        "candidates/epoch": run.stream.epochs,
        "prune/explore_easy": run.learned.easy,
        "prune/explore_hard": run.learned.hard,
    }
    assert run.stream.epochs > 1 and run.learned.easy != 0.5


# Rounds.


def test_a_step_of_rounds_is_made_of_the_first_groups_that_count():
    run = source(DAPO)
    (prompts,) = taught(run, 1, rounds=True)
    counts_Q = prompts.row_Q % 3 != 0
    assert prompts.collected.rounds > 1 and prompts.collected.rolled_out == len(prompts.row_Q)
    used_Q = counts_Q & (counts_Q.cumsum(0) <= PROMPTS)
    assert torch.equal(prompts.weight_Q, used_Q.double()) and prompts.sequences == PROMPTS * GROUP
    assert prompts.row_Q.tolist() == PromptStream(SIZE, SEED).take(len(prompts.row_Q)).tolist()
    assert (prompts.prob_Q == 1).all() and prompts.kept_share == 1


def test_rounds_are_asked_for_in_whole_multiples():
    sizes = []
    run = source(DAPO, prompts=5)

    def roll_out(number, block):
        assert number == len(sizes)
        sizes.append(len(block.row_Q))
        return answers(block.row_Q)

    run.rounds(0, roll_out, multiple=4)
    assert set(sizes) == {8}, "5 raised to whole groups on every process"


def test_prompts_that_are_skipped_are_candidates_without_a_place_in_the_step():
    run = source(GRESO)
    steps = taught(run, 12, rounds=True)
    skipped = [prompts for prompts in steps if prompts.kept_share < 1]
    assert skipped and all((prompts.draw.prob_N <= 1).all() for prompts in steps)
    for prompts in skipped:
        assert torch.equal(prompts.row_Q, prompts.candidates.row_P[prompts.draw.keep_N])
        assert torch.equal(prompts.prob_Q, prompts.draw.prob_N[prompts.draw.keep_N])
        assert set(prompts.weight_Q.tolist()) <= {0.0, 1.0}, "no weight makes up for them"


def test_skips_of_a_round_are_its_own_stream():
    run = source(GRESO)
    taught(run, 6, rounds=True)
    drawn = []
    stream, learned = run.stream.state_dict(), run.learned
    run.rounds(6, lambda number, block: answers(drawn.append(block.draw) or block.row_Q))
    again = PromptStream(SIZE, SEED)
    again.load_state_dict(stream)
    for number, draw in enumerate(drawn):
        row_P = again.take(len(draw.keep_N))
        chance = GRESO.rounds.skipping.chances(run.history.streak(row_P), learned)
        numbers = step_streams(SEED, 6)(Purpose.PROMPT_SKIP, number).random((len(row_P), 2))
        ours = (torch.from_numpy(numbers) >= 1 - chance).all(1)
        assert torch.equal(draw.keep_N, ours), "as long as a round is taken at one look ahead"


def test_the_limit_of_rounds_leaves_the_stream_where_it_got_to():
    run = source(DAPO)
    flat = lambda number, block: Rewards.of_groups(torch.ones(len(block.row_Q), GROUP))  # noqa: E731
    with pytest.raises(RoundsError, match="after 10 rounds 0 of 40 groups"):
        run.rounds(0, flat)
    assert run.stream.epochs == pytest.approx(40 / SIZE) and run.history.seen_share == 0


# A run that goes on where it stopped.

RUNS = {
    "thin": (DPPO, {}),
    "fill": (DPPO, {"fill": True}),
    "rounds": (DAPO, {}),
    "rounds that skip": (GRESO, {}),
    "auto": (AUTO, {"prompts": 8}),
    "auto, fill": (AUTO, {"prompts": 8, "fill": True}),
}


@pytest.mark.parametrize("stop", [1, 6, 9])
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_run_that_did_not_stop_bit_for_bit(tmp_path, name, stop):
    method, settings = RUNS[name]
    rounds = method.rounds is not None
    whole, first = source(method, **settings), source(method, **settings)
    steps = taught(whole, 14, rounds=rounds)
    taught(first, stop, rounds=rounds)
    position = json.loads(json.dumps(first.save(tmp_path)))
    second = source(method, **settings)
    second.load(tmp_path, position)
    rest = taught(second, 14 - stop, rounds=rounds, first=stop)
    assert all(same(ours, theirs) for ours, theirs in zip(rest, steps[stop:], strict=True))
    assert second.learned == whole.learned and second.figures == whole.figures
    assert [path.name for path in tmp_path.iterdir()] == [HISTORY_FILE]


def test_a_run_that_forgot_its_history_or_place_would_be_seen():
    whole = source()
    steps = taught(whole, 10)
    forgetful = source()
    forgetful.stream.load_state_dict({"epoch": 1, "offset": 0})
    assert not all(same(a, b) for a, b in zip(taught(forgetful, 4, first=6), steps[6:], strict=True))


def test_prompts_that_a_checkpoint_does_not_know_are_counted_in_a_warning(tmp_path):
    run = source()
    taught(run, 6)
    position = run.save(tmp_path)
    other = source(identities=np.arange(5, SIZE + 5, dtype=np.uint64))
    with pytest.warns(UserWarning, match="5 of 24 prompts are not in the checkpoint's dataset"):
        other.load(tmp_path, position)
    assert other.history.seen_share == pytest.approx(19 / 24)


def test_a_damaged_place_is_refused(tmp_path):
    run = source(GRESO)
    taught(run, 2, rounds=True)
    position = run.save(tmp_path)
    with pytest.raises(CheckpointError, match="what was learned of prompts to skip is damaged"):
        run.load(tmp_path, position | {"learned": {"temperature": 1}})
    for value in ("0.5", None, float("nan"), True, [0.5]):
        with pytest.raises(CheckpointError, match=r"easy=.* is no finite number"):
            run.load(tmp_path, position | {"learned": position["learned"] | {"easy": value}})
    with pytest.raises(CheckpointError, match="offset in"):
        run.load(tmp_path, position | {"offset": SIZE})
    (tmp_path / HISTORY_FILE).unlink()
    with pytest.raises(CheckpointError, match="no history at"):
        run.load(tmp_path, position)


def test_a_checkpoint_without_what_was_learned_begins_to_learn_anew(tmp_path):
    """A run whose method did not skip goes on with one that does."""
    plain = source(DAPO)
    taught(plain, 2, rounds=True)
    run = source(GRESO)
    run.load(tmp_path, plain.save(tmp_path))
    assert run.learned == StreakSkipping().start() and run.stream.state_dict() == plain.stream.state_dict()
    assert Fraction(1, 4) == StreakSkipping().target


# Records.


def test_a_stream_without_places_gives_whole_blocks():
    prompts = whole_block(3, 7)
    assert prompts.row_Q.tolist() == [-1, -1, -1] and prompts.sequences == 7
    assert (prompts.weight_Q == 1).all() and (prompts.prob_Q == 1).all() and prompts.draw.keep_N.all()
    assert (prompts.kept_share, prompts.seen_share) == (1.0, 0.0)


def test_groups_in_another_order_take_their_prompts_along():
    run = source()
    taught(run, 6)
    prompts = run.block(6, generations=GROUP)
    moved = prompts.groups_reordered(torch.tensor([1, 0]))
    assert moved.row_Q.tolist() == prompts.row_Q.tolist()[::-1]
    assert moved.weight_Q.tolist() == prompts.weight_Q.tolist()[::-1]
    assert moved.prob_Q.tolist() == prompts.prob_Q.tolist()[::-1]
    assert moved.draw is prompts.draw and moved.sequences == prompts.sequences


def test_records_of_rounds_are_laid_end_to_end():
    first, second = whole_block(2, 6), whole_block(1, 3)
    draw = joined([first.draw, Draw(keep_N=torch.tensor([False]), prob_N=torch.tensor([0.5]), weight_N=torch.zeros(1))])
    assert draw.keep_N.tolist() == [True, True, False] and draw.prob_N.tolist() == [1, 1, 0.5]
    candidates = joined([first.candidates, second.candidates])
    assert isinstance(candidates, Candidates) and candidates.row_P.tolist() == [-1] * 3
