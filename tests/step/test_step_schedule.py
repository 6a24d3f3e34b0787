"""Several optimizer steps per rollout: how completions are dealt out to the shares of a pass, and drawn in each."""

from dataclasses import replace

import pytest
import torch
from pruning_enumeration import boxes_of_level
from refusals import refused
from tiny_policy import CONTEXT, GRPO_BY_HAND, N, P, relative_error
from tiny_step import ALL, DPPO, EXACT, gradients, plan_of, rolled_out

from dppo.errors import ShapeError
from dppo.pruning import Pruning, uniform_score
from dppo.rng import Purpose, step_streams
from dppo.step import UpdateSchedule, completions_of
from dppo.step.schedule import deal


def dealt(process_N, shares, seed=0):
    return deal(torch.tensor(process_N), shares, step_streams(seed, 3))


@pytest.mark.parametrize("shares", [2, 3, 4])
def test_shares_are_near_equal_on_every_process(shares):
    """Processes of 7, 4 and 1 completions that lie among each other."""
    process_N = torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 0])
    for seed in range(20):
        share_N = dealt(process_N.tolist(), shares, seed)
        for process in range(3):
            sizes = torch.bincount(share_N[process_N == process], minlength=shares)
            assert sizes.max() - sizes.min() <= 1 and len(sizes) == shares


def test_every_completion_is_as_likely_in_every_share():
    """Of five, three are in one share and two in the other. A deal that always began with share 0 would be seen."""
    seeds = 3000
    counts = sum(torch.nn.functional.one_hot(dealt([0] * 5, 2, seed), 2) for seed in range(seeds)) / seeds
    spread = (0.25 / seeds) ** 0.5
    assert ((counts - 0.5).abs() < 5 * spread).all()
    assert abs(3 / 5 - 0.5) > 5 * spread, "what it would be then"


@pytest.mark.parametrize(
    ("shares", "prompts", "multiple", "parts"),
    [(1, 7, 1, 1), (4, 16, 1, 4), (4, 10, 1, 1), (4, 4, 1, 1), (2, 12, 3, 2), (2, 6, 3, 1)],
)
def test_prompts_are_drawn_for_each_share_where_they_come_out_even(shares, prompts, multiple, parts):
    assert UpdateSchedule(passes=3, shares=shares).parts(prompts, multiple) == parts


def test_completions_of_prompts_that_were_drawn_for_a_share_are_trained_in_it():
    part_Q = torch.arange(P) % 2
    prompts = replace(ALL, part_Q=part_Q)
    plan = plan_of(DPPO, prompts=prompts, passes=UpdateSchedule(passes=2, shares=2))
    share_N = part_Q[plan.rewards.group_N]
    assert torch.equal(plan.share_UN, torch.stack([share_N == 0, share_N == 1] * 2))
    assert not torch.equal(plan.share_UN, plan_of(DPPO, passes=UpdateSchedule(passes=2, shares=2)).share_UN)
    with refused(ShapeError, "2 shares", "a pass has 1", "parts=passes.parts(prompts)"):
        plan_of(DPPO, prompts=prompts)


def test_each_pass_is_drawn_by_its_own_stream_alone():
    real = step_streams(1, 7)
    together = plan_of(DPPO, streams=real, passes=UpdateSchedule(passes=4)).weight_UN
    alone = [plan_of(DPPO, streams=lambda p, *key, i=i: real(p, i)).weight_UN[0] for i in range(4)]
    assert torch.equal(together, torch.stack(alone))
    assert len({tuple(weight_N.tolist()) for weight_N in together}) > 1


@pytest.mark.parametrize("shares", [2, 3])
def test_the_shares_of_a_pass_add_up_to_the_full_gradient(shares):
    """For every deal by itself: each completion is drawn in one share, over the denominator of the whole pass."""
    method = replace(DPPO, completions=Pruning(rate=0.5, score=uniform_score), beta=0.2)
    wanted = replace(GRPO_BY_HAND, beta=0.2).gradient()
    for seed in range(4):
        real = step_streams(seed, 0)
        dealt = plan_of(method, streams=real, passes=UpdateSchedule(shares=shares))
        assert (dealt.share_UN.sum(0) == 1).all() and dealt.sizes.denominator == N
        got = 0.0
        for share, row_N in enumerate(dealt.share_UN):
            boxes = boxes_of_level(method.completions, completions_of(method, rolled_out(), CONTEXT).take(row_N))

            def streams(purpose, *key, boxes=boxes, real=real, share=share):
                mine = purpose == Purpose.COMPLETION_DRAW and key[0] % shares == share
                return boxes[key[0] // shares].rng() if mine else real(purpose, *key)

            plan = plan_of(method, streams=streams, passes=UpdateSchedule(passes=len(boxes), shares=shares))
            assert torch.equal(plan.share_UN[: len(boxes)], dealt.share_UN.repeat(len(boxes), 1)[: len(boxes)])
            chance_U = torch.tensor([box.chance for box in boxes], dtype=torch.float64)
            got = got + chance_U @ gradients(method, plan, plan.weight_UN[share::shares])
        assert relative_error(got, wanted) < EXACT
