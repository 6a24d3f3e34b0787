"""Prompts asked for ahead: in whichever update a group is trained, its weight is that of the draw that asked for it."""

import json
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch
from arrays import candidates_of, tensor
from refusals import refused

from dppo.errors import CheckpointError, ShapeError
from dppo.step.in_flight import InFlight
from dppo.step.records import drawn_block
from dppo.types import Block, Draw

PAIRS = {(0, 1): 0.5, (0, 2): 0.3, (1, 2): 0.2}
"""The draws of a block of three, two of which are kept, and their chances."""
PROB = [0.8, 0.7, 0.5]
KNOWN = np.arange(100, dtype=np.uint64)
"""Hashes of the rows of the dataset."""
STEPS_OF_3 = InFlight(prompts=3, generations=2)
HALF_STEPS_OF_2 = InFlight(prompts=4, generations=2, updates=2)
VALUE = np.array([[1.0, -2.0, 4.0], [3.0, 0.5, -1.0]])
"""What each prompt of two blocks has for a gradient."""
FULL = VALUE.sum() / 3
ROWS = (0, 1, 2, 10, 11, 12)
ORDERS = list(permutations(ROWS))[::17]


def block(rows, keep, prob=PROB):
    """A block of prompts with a draw that is told."""
    keep_P, prob_P = torch.tensor([place in keep for place in range(len(rows))]), tensor(prob)
    found = candidates_of([each / 3 for each in prob], tokens=[7.0] * len(rows), rows=rows)
    draw = Draw(keep_N=keep_P, prob_N=prob_P, weight_N=torch.where(keep_P, 1 / prob_P, 0.0))
    return drawn_block(Block(candidates=found, draw=draw), 2)


def two_blocks(first, second, ahead=STEPS_OF_3, rows=(ROWS[:3], ROWS[3:]), prob=(PROB, PROB)):
    """What is in flight once both were asked for; a prompt's name is its row."""
    for given, keep, prob_P in zip(rows, (first, second), prob, strict=True):
        ahead = ahead.after_block(block(given, keep, prob_P), [str(given[place]) for place in keep])
    return ahead


def made_of(ahead, order):
    """Weights, values and sizes of each update, groups coming back in an order that does not depend on the draws."""
    while ahead.due:
        back = sorted(ahead.uids, key=lambda uid: order.index(int(uid)))[: ahead.groups]
        asked, ahead = ahead.after_update(back)
        values = tensor([VALUE[row // 10][row % 10] for row in asked.prompts.row_Q.tolist()])
        yield asked.prompts.weight_Q, values, torch.tensor(asked.size_Q), asked.prompts.sequences
    assert not ahead.flights


def updates(ahead, order):
    """Gradient of every update."""
    return [float((w * values * sizes).sum()) / count for w, values, sizes, count in made_of(ahead, order)]


def expected(made, order, ahead=STEPS_OF_3):
    """The mean of every update over every draw of both blocks."""
    draws = product(PAIRS.items(), repeat=2)
    return sum(p * q * np.array(made(two_blocks(one, two, ahead), order)) for (one, p), (two, q) in draws)


@pytest.mark.parametrize("ahead", [STEPS_OF_3, HALF_STEPS_OF_2])
def test_every_group_counts_once_on_average_in_whatever_order_they_come_back(ahead):
    # Blocks of 3; where they are split 4 make a step, and an update is a mean over half a step: two are twice it.
    for order in ORDERS:
        assert expected(updates, order, ahead).sum() / ahead.updates == pytest.approx(FULL, rel=1e-12)
    # In the order of the asking each update is its block.
    assert expected(updates, ROWS).tolist() == pytest.approx((VALUE.sum(1) / 3).tolist(), rel=1e-12)


def weighted(ahead, weight_of):
    """The same with other weights of what is in flight."""
    return replace(ahead, flights=tuple(replace(each, weight=weight_of(each)) for each in ahead.flights))


def with_probabilities_of_the_block_that_is_due(ahead, order):
    """Wrong: weights by the draw of the step that trains, in place of the one that asked."""
    return updates(weighted(ahead, lambda flight: 1 / PROB[(flight.row + 1) % 10 % 3]), order)


def over_what_came_back(ahead, order):
    """Wrong: a mean whose denominator is made of the weights of the groups that an update took."""
    return [float((weights * values).sum() / weights.sum()) for weights, values, _, _ in made_of(ahead, order)]


@pytest.mark.parametrize("wrong", [with_probabilities_of_the_block_that_is_due, over_what_came_back])
def test_wrong_twins_are_seen(wrong):
    assert max(abs(expected(wrong, order).sum() - FULL) for order in ORDERS) > 0.05 * abs(FULL)


def test_a_group_keeps_the_share_of_its_own_block_where_blocks_differ_in_length():
    ahead = two_blocks((0, 1, 2), (0, 2, 3), rows=([0, 1, 2], [3, 4, 5, 6]), prob=([1.0] * 3, [0.5, 0.5, 1.0, 1.0]))
    asked, rest = ahead.after_update(["6", "0", "2"])
    assert asked.prompts.row_Q.tolist() == [0, 2, 6] and asked.uid_Q == ["0", "2", "6"] and asked.size_Q == [2, 2, 2]
    assert asked.prompts.weight_Q.tolist() == [1.0, 1.0, 0.75] and asked.prompts.sequences == 6
    late, rest = rest.after_update(["5", "3", "1"])
    assert late.prompts.weight_Q.tolist() == [1.0, 1.5, 0.75]  # 3 / 3, 3 / 4 over 0.5, 3 / 4
    assert late.prompts.candidates.row_P.tolist() == [1, 3, 5, 4] and len(late.prompts.row_Q) == 3
    assert not rest.flights and not rest.due


def test_a_block_that_is_split_gives_each_update_its_part_of_what_was_kept_and_left_out():
    ahead, keep = InFlight(prompts=8, generations=4, updates=4), (0, 2, 3, 4, 6, 7)
    ahead = ahead.after_block(block(list(range(8)), keep, [0.75] * 8), [str(row) for row in keep])
    taken, left_out = [], []
    while ahead.due:
        asked, ahead = ahead.after_update(ahead.uids[-ahead.groups :])
        taken.append(len(asked.uid_Q))
        left_out += asked.prompts.candidates.row_P[~asked.prompts.draw.keep_N].tolist()
        assert asked.prompts.sequences == 8 and sum(asked.size_Q) == 4 * taken[-1]
    assert taken == [1, 2, 1, 2] and left_out == [1, 5]


def test_a_replacement_has_the_probability_size_and_place_of_what_verl_dropped():
    ahead = two_blocks((0, 2), (1, 2))
    changed = ahead.after_replacing(["2"], candidates_of([2.0], tokens=[9.0], seen=[False], rows=[30]), ["30"])
    assert changed.uids == ["0", "30", "11", "12"] and changed.due == ahead.due
    wanted = replace(ahead.flights[1], uid="30", row=30, signal=2.0, tokens=9.0, seen=False)
    assert changed.flights[1] == wanted and wanted.prob == 0.5


def replaced(ahead, order):
    """Updates of a run in which verl drops row 2 wherever it was asked for, and takes row 12 in its place."""
    if "2" in ahead.uids:
        ahead = ahead.after_replacing(["2"], candidates_of([0.0], seen=[False], rows=[12]), ["12"])
    return updates(ahead, order)


def asked_for_anyway(ahead, order):
    """Wrong: a replacement with the weight of a prompt that is always asked for."""
    return replaced(weighted(ahead, lambda flight: 1.0 if flight.uid == "2" else flight.weight), order)


def test_a_replacement_counts_once_on_average_in_the_place_of_what_verl_dropped():
    blocks = {"rows": ((0, 1, 2), (10, 11)), "prob": (PROB, [1.0, 1.0])}

    def mean(made):
        return sum(p * sum(made(two_blocks(keep, (0, 1), **blocks), ROWS)) for keep, p in PAIRS.items())

    first, second = VALUE
    wanted = (first[0] + first[1] + second[2]) / 3 + (second[0] + second[1]) / 2
    assert mean(replaced) == pytest.approx(wanted, rel=1e-12)
    assert abs(mean(asked_for_anyway) - wanted) > 0.05 * abs(wanted)


def test_completions_of_prompts_of_unequal_size_count_alike():
    prompts = replace(block([0, 1, 2], (0, 1)), size_Q=torch.tensor([1, 3]))
    asked, _ = STEPS_OF_3.after_block(prompts, ["0", "1"]).after_update(["1", "0"])
    assert asked.size_Q == [1, 3]
    assert asked.prompts.weight_Q.tolist() == pytest.approx([2 / 1 / 0.8, 2 / 3 / 0.7])


def test_what_is_in_flight_comes_back_from_json_bit_for_bit_with_the_numbers_that_weigh_it_and_its_rows():
    ahead = two_blocks((0, 2), (1, 2), HALF_STEPS_OF_2)
    _, ahead = ahead.after_update([ahead.uids[3]])
    assert HALF_STEPS_OF_2.resumed(json.loads(json.dumps(ahead.saved(KNOWN))), KNOWN) == ahead
    saved = two_blocks((0, 2), (1, 2)).saved(KNOWN)
    for now, named in (
        ({"prompts": 6}, "data.train_batch_size=6 where it has 3"),
        ({"generations": 8}, "actor_rollout_ref.rollout.n=8 where it has 2"),
        ({"updates": 3}, "parameter_sync_step=3 where it has 1"),
    ):
        other = replace(STEPS_OF_3, **now)
        with refused(CheckpointError, "4 prompts in flight", named):
            other.resumed(saved, KNOWN)
        other.resumed(saved | {"flights": [], "due": [], "identities": []}, KNOWN)
    for rows in (KNOWN + 1, KNOWN[:5]):
        with refused(CheckpointError, "4 prompts in flight", "dataset of the checkpoint"):
            STEPS_OF_3.resumed(saved, rows)


def test_groups_that_nobody_asked_for_and_too_few_or_many_of_them_are_errors():
    ahead = two_blocks((0, 2), (1, 2))
    with refused(ShapeError, "'99'"):
        ahead.after_update(["0", "99"])
    with refused(ShapeError, "3 groups", "made of 2"):
        ahead.after_update(["0", "2", "11"])
    with refused(ShapeError, "no block"):
        _ = STEPS_OF_3.groups
    with refused(ShapeError, "1 prompts of a block that is split over 2 updates", "multiple=2"):
        HALF_STEPS_OF_2.after_block(block([0, 1, 2], (1,)), ["1"])
    assert HALF_STEPS_OF_2.after_block(block([0, 1, 2], (0, 1)), ["0", "1"]).groups == 1
