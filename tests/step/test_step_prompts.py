"""Which prompts a step rolls out: blocks and rounds, what is learned from them, and runs that go on after a stop."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import candidates_of, rewards_of
from drafts import Run, trained
from pruning_enumeration import boxes_of_level
from refusals import refused, warned

from dppo.errors import CheckpointError, DataError
from dppo.methods import METHODS
from dppo.pruning import Auto, MomentSamples, PromptPrior, PromptPruning
from dppo.step import drawn_block
from dppo.step.prompts import HISTORY_FILE
from dppo.types import Block, Rewards

SIZE, PROMPTS, GROUP, SEED = 24, 4, 3, 6
DPPO, DAPO, GRESO = METHODS["dppo"].with_rates(prompt=0.5), METHODS["dapo"], METHODS["greso"]
AUTO = replace(DPPO, prompts=PromptPruning(rate=0.8, floor=0.2, auto=Auto(fewest=8, least_gain=1.0)))


def source(method=DPPO, *, size=SIZE, prompts=PROMPTS, **options):
    return Run.over(size, method, prompts=prompts, seed=SEED, **options)


def answers(row_Q):
    """Rewards of groups, a function of the dataset row: rows that are multiples of three are silent, low or high."""
    zero_variance_Q = row_Q % 3 == 0
    reward_QG = torch.where(zero_variance_Q, (row_Q % 2).double(), 0.0)[:, None].repeat(1, GROUP)
    reward_QG[:, 0] += (~zero_variance_Q).double() * (1 + row_Q / 100)
    return Rewards.of_groups(reward_QG)


taught = partial(trained, answers=answers, generations=GROUP, tokens=7)


def after(steps, method=DPPO, **options):
    """A run that has learned from some steps."""
    run = source(method, **options)
    taught(run, steps)
    return run


def kept_share(prompts) -> float:
    """Share of the candidates that were rolled out."""
    return len(prompts.row_Q) / len(prompts.candidates.row_P)


def same(first, second) -> bool:
    """True for two steps with the same bits."""
    pairs = [(first, second), (first.draw, second.draw), (first.candidates, second.candidates)]
    names = ("row_Q", "prob_Q", "weight_Q", "keep_N", "prob_N", "weight_N", "row_P", "signal_P", "tokens_P", "seen_P")
    values = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in names if hasattr(a, name)]
    numbers = (first.sequences, first.collected) == (second.sequences, second.collected)
    return numbers and all(torch.equal(a, b) for a, b in values)


def test_the_first_epoch_rolls_everything_out_and_the_second_half_of_it():
    run = source()
    steps = taught(run, 12)
    assert all(kept_share(prompts) == 1 and (prompts.weight_Q == 1).all() for prompts in steps[:6])
    assert sorted(torch.cat([prompts.row_Q for prompts in steps[:6]]).tolist()) == list(range(SIZE))
    for prompts in steps[6:]:
        assert len(prompts.row_Q) == 2 and kept_share(prompts) == 0.5 and prompts.candidates.seen_P.all()
        assert prompts.sequences == PROMPTS * GROUP, "a denominator counts those that were not rolled out"
        assert torch.equal(prompts.weight_Q, 1 / prompts.prob_Q) and prompts.collected is None
        assert torch.equal(prompts.row_Q, prompts.candidates.row_P[prompts.draw.keep_N])
    assert run.metrics == {"candidates/epoch": 2.0}, "12 visits are too few for a ceiling"


def test_a_rate_that_rounds_to_no_prompt_says_so():
    few, some = (source(DPPO.with_rates(prompt=rate), prompts=6) for rate in (0.05, 0.4))
    assert all(kept_share(step) == 1 for step in taught(few, 8)) and taught(some, 8)
    (message,) = few.messages
    assert not some.messages and "0.05 of a step's 6 prompts rounds to none" in message


def again(run, step=3, **options):
    """The block of a step, as if it were the next one after those that were learned from."""
    place = run.stream.state_dict()
    prompts = run.block(step, generations=GROUP, **options)
    run.stream.load_state_dict(place)
    return prompts


def test_the_number_rolled_out_can_be_raised_to_a_multiple_and_follows_the_share_of_training_done():
    run, stopping = after(3, prompts=8), after(6, METHODS["infobatch"])
    assert [len(again(run, multiple=multiple).row_Q) for multiple in (1, 8, 3)] == [4, 8, 6]
    assert kept_share(again(stopping, 6, done=0.9)) == 1 > kept_share(again(stopping, 6, done=0.5))


@pytest.mark.parametrize("fill", [False, True])
def test_prompts_are_drawn_for_each_share_by_itself(fill):
    """Ranks roll out slices of them, so shares take turns; a history learns from groups in the candidates' order."""
    run = after(3, prompts=8, fill=fill)
    prompts, ahead = again(run, parts=2), run.stream.peek(SIZE)
    block = len(prompts.draw.keep_N)
    assert block == (16 if fill else 8) and len(prompts.row_Q) == (8 if fill else 4)
    assert sorted(prompts.candidates.row_P.tolist()) == sorted(ahead[:block].tolist())
    assert torch.equal(prompts.row_Q, prompts.candidates.row_P[prompts.draw.keep_N])
    assert prompts.part_Q.tolist() == [0, 1] * (len(prompts.row_Q) // 2)
    assert prompts.part_Q.tolist() == [int(row not in ahead[: block // 2]) for row in prompts.row_Q]
    whole = source(METHODS["dppo"], prompts=8).block(0, generations=GROUP, parts=2)
    assert whole.part_Q is None, "where no prompt is pruned, completions are dealt one by one"


@pytest.mark.parametrize(("rate", "kept"), [(0.25, 6), (0.2, 6), (0.4, 5)])
def test_shares_of_two_prompts_keep_what_the_rate_says_together(rate, kept):
    run = after(3, METHODS["dppo"].with_rates(prompt=rate), prompts=8)
    for step in range(3, 8):
        prompts = again(run, step, parts=4)
        assert len(prompts.row_Q) == kept == round(8 * (1 - rate))
        assert set(torch.bincount(prompts.part_Q).tolist()) == {1, 2}


def test_what_was_drawn_for_one_share_says_nothing_of_the_next():
    """Weights where the first prompt was kept, and where it was not. The wrong twin is one draw for both shares."""
    run = after(3, prompts=8)

    def weights(blocks, **options):
        """(B, 8) in the order of the stream: the first half are the candidates of the first share."""
        found = torch.zeros(blocks, SIZE, dtype=torch.float64)
        for number in range(blocks):
            prompts = again(run, 3 + number, **options)
            found[number, prompts.candidates.row_P] = prompts.draw.weight_N
        return found[:, run.stream.peek(8)]

    weight_BP = weights(600, parts=2)
    kept_B = weight_BP[:, 0] > 0
    assert 0.2 < kept_B.double().mean() < 0.8
    for mine_B in (kept_B, ~kept_B):
        second_BP = weight_BP[mine_B][:, PROMPTS:]
        error_P = second_BP.std(0) / len(second_BP) ** 0.5
        assert ((second_BP.mean(0) - 1).abs() < 4 * error_P).all() and (error_P < 0.1).all()
    once_BP = weights(100)
    assert once_BP[once_BP[:, 0] > 0][:, 0].mean() > 1.3 and not once_BP[once_BP[:, 0] == 0][:, 0].any()


def test_filled_blocks_grow_until_as_many_prompts_as_usual_are_rolled_out():
    run = source(fill=True)
    steps = taught(run, 12)
    assert all(len(prompts.row_Q) == PROMPTS for prompts in steps)
    longer = [len(prompts.candidates.row_P) for prompts in steps]
    assert longer[:6] == [PROMPTS] * 6 and max(longer) == 2 * PROMPTS, "up to 1 / (1 - rate) as many candidates"
    assert all(prompts.sequences == size * GROUP for prompts, size in zip(steps, longer, strict=True))
    larger = after(3, prompts=16, fill=True)
    sizes = [len(again(larger, parts=parts).candidates.row_P) for parts in (1, 4)]
    assert run.stream.epochs > 2 and sizes == [SIZE, SIZE], "no longer than an epoch"


def test_auto_starts_unpruned_and_prunes_once_prompts_have_come_back():
    run = source(AUTO, prompts=8)
    steps = taught(run, 24)
    assert all(kept_share(prompts) == 1 for prompts in steps[:4]), "an epoch of three steps, and a step of visits"
    pruned = [prompts for prompts in steps[4:] if kept_share(prompts) < 1]
    assert len(pruned) > 10 and len(run.visits) > 8
    for prompts in pruned:
        assert torch.equal(prompts.weight_Q, 1 / prompts.prob_Q) and prompts.sequences == 8 * GROUP
    assert AUTO.prompts.choice(run.visits).rate > 0
    assert run.metrics["prune/prompt_ceiling"] == pytest.approx(1.5, abs=0.1)  # a third has zero variance
    flat_P = torch.cat([prompts.candidates.row_P % 3 == 0 for prompts in pruned])
    keep_P = torch.cat([prompts.draw.keep_N.double() for prompts in pruned])
    assert keep_P[flat_P].mean() < 0.5 < 0.85 < keep_P[~flat_P].mean()


def test_a_dataset_smaller_than_a_block_is_refused_with_what_to_set():
    with refused(DataError, "3 prompts", "generation_batch_size", 4):
        source(size=3)


RUNS = {
    "thin": (DPPO, {}),
    "fill": (DPPO, {"fill": True}),
    "rounds": (DAPO, {}),
    "rounds that skip": (GRESO, {}),
    "auto": (AUTO, {"prompts": 8}),
    "auto, fill": (AUTO, {"prompts": 8, "fill": True}),
    "pass rates": (DPPO, {"prior": PromptPrior(rate_P=torch.linspace(0.1, 0.9, SIZE).double(), completions=4.0)}),
}


def goes_on(steps, second, stop):
    """True for a loaded run whose steps from ``stop`` on are those of the run that did not stop."""
    rest = taught(second, len(steps) - stop, first=stop)
    return all(same(ours, theirs) for ours, theirs in zip(rest, steps[stop:], strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_run_that_did_not_stop_bit_for_bit(tmp_path, name):
    method, settings = RUNS[name]
    whole = source(method, **settings)
    steps = taught(whole, 14)
    for stop in (0, 1, 6, 9):
        second = source(method, **settings)
        second.load(tmp_path, json.loads(json.dumps(after(stop, method, **settings).save(tmp_path))))
        assert goes_on(steps, second, stop), f"stopped at {stop}"
        assert second.learned == whole.learned and second.metrics == whole.metrics, f"stopped at {stop}"
        assert [path.name for path in tmp_path.iterdir()] == [HISTORY_FILE]


@pytest.mark.parametrize(("method", "prompts", "history"), [(DPPO, 4, False), (AUTO, 8, True)])
def test_a_run_that_forgot_its_history_or_what_prompts_gave_would_be_seen(tmp_path, method, prompts, history):
    """The wrong twins: a history is not loaded, or the samples that auto chose from are not."""
    steps, second = taught(source(method, prompts=prompts), 14), source(method, prompts=prompts)
    position = after(9, method, prompts=prompts).save(tmp_path)
    assert len(position["visits"]["found_N"]) > (8 if history else 5)
    second.load(tmp_path, position | ({"visits": MomentSamples.none().saved()} if history else {}), history=history)
    assert not goes_on(steps, second, 9)


def test_prompts_that_a_checkpoint_does_not_know_are_counted_and_a_missing_history_is_refused(tmp_path):
    other, run = source(), after(2, GRESO)
    other.history.identities = other.history.identities + 5
    position = after(6).save(tmp_path)
    with warned("5 of 24"):
        other.load(tmp_path, position)
    assert other.history.visited(range(24)).sum() == 19
    position = run.save(tmp_path)
    (tmp_path / HISTORY_FILE).unlink()
    with refused(CheckpointError, HISTORY_FILE):
        run.load(tmp_path, position)
    run.load(tmp_path, position, history=False)  # accepted
    assert run.stream.state_dict() == {"epoch": position["epoch"], "offset": position["offset"]}


def test_tokens_of_all_candidates_are_expected_before_the_draw_and_counted_where_none_is_pruned():
    """The wrong twin counts what was rolled out, with its weights: another number for each draw."""
    candidates, pruning = candidates_of([0.5, 1.0, 0.2, 0.8], tokens=[1.0, 2.0, 3.0, 4.0]), DPPO.prompts

    def drawn(pruning, rng):
        return drawn_block(Block(candidates=candidates, draw=pruning.draw(candidates, rng)), GROUP)

    blocks = [drawn(pruning, box.rng()) for box in boxes_of_level(pruning, candidates)]
    assert {block.expected_tokens for block in blocks} == {GROUP * 10.0}
    counted = {round(float((block.weight_Q * candidates.tokens_P[block.draw.keep_N]).sum()), 6) for block in blocks}
    assert len(counted) > 1 and drawn(pruning.at_rate(0.0), np.random.default_rng(0)).expected_tokens is None


def test_parts_that_are_owed_half_a_prompt_ask_for_no_more_than_there_are():
    """The rule by a threshold keeps all of a part whose signals tie, and a part before it was rounded down."""
    for seed in range(20):
        run = Run.over(70, METHODS["infobatch"], prompts=14, seed=seed, half_life=np.inf)
        live = np.random.default_rng(seed).permutation(70) < 14

        def one_of_four(row_Q, live=live):
            return rewards_of(*[[live[row], 0, 0, 0] for row in row_Q.tolist()])

        trained(run, 20, answers=one_of_four, generations=4, tokens=5, parts=2)
