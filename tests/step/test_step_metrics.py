"""Metrics of a step: golden numbers by hand, and estimates of what was not rolled out."""

from dataclasses import replace

import pytest
import torch
from arrays import candidates_of, rewards_of, tensor
from one_step import step_of

from dppo.methods import METHODS
from dppo.pruning import TokenPruning
from dppo.rng import step_streams
from dppo.step import RolledOut, drawn_block, plan_step
from dppo.types import Block, Draw, Rewards

GRPO, DPPO = METHODS["grpo"], METHODS["dppo"]
NAN = float("nan")


def test_golden_metrics_of_a_draw():
    """Half of eight completions of one token, two of them without a gradient."""
    plan = step_of(DPPO, [1, 0, 0.5, 1, 0], [0, 1, 0.5], tokens=[3, 3, 9, 3, 3, 3, 3, 7])
    weight_N, live_N = plan.weight_UN[0], plan.prob_UN[0] > 0
    assert weight_N[weight_N > 0].tolist() == [pytest.approx(2.0, rel=0.2)] * 3
    prob_R, square_R = plan.prob_UN[0, live_N], plan.score_N[live_N].square()
    tokens_R = plan.completions.tokens_N[live_N].double()
    ceiling = square_R.mean() * tokens_R.mean() / (square_R * tokens_R).sqrt().mean() ** 2
    assert plan.draw_metrics == [
        {
            "prune/kept_share": 3 / 8,
            "prune/live_share": 6 / 8,
            "prune/effective_rows": pytest.approx(weight_N.sum().item() ** 2 / weight_N.square().sum().item()),
            "prune/largest_weight": weight_N.max().item(),
            "prune/added_variance": pytest.approx(float(((1 / prob_R - 1) * square_R).sum() / square_R.sum())),
            "prune/tokens_trained": 9.0,
            "prune/tokens_skipped": 25.0,
            "prune/completion_rate": pytest.approx(0.5),
            "prune/completion_ceiling": pytest.approx(float(ceiling)),
        }
    ]


def test_what_is_not_drawn_keeps_its_probability_where_tokens_are_left_out_too():
    groups = ([1, 0, 0.5, 1, 0], [0, 1, 0.5])
    whole, part = (step_of(replace(DPPO, tokens=TokenPruning(head_rate=rate)), *groups) for rate in (0.0, 0.5))
    assert torch.equal(part.prob_UN, whole.prob_UN), "all of a completion is reached where nothing is cut"
    (metrics,), (before,) = part.draw_metrics, whole.draw_metrics
    for name in ("prune/completion_rate", "prune/added_variance"):
        assert metrics[name] == pytest.approx(before[name]), name


def test_tokens_trained_and_skipped_are_all_there_are():
    """The wrong twin counts those of completions with a gradient alone: a zero-variance group's are gone."""
    for tokens in (TokenPruning(), TokenPruning(rate=0.5)):
        plan = step_of(replace(DPPO, tokens=tokens), [1, 0, 0.5], [1, 1, 1], tokens=[4, 5, 6, 7, 8, 9])
        (metrics,) = plan.draw_metrics
        assert metrics["prune/tokens_trained"] + metrics["prune/tokens_skipped"] == 39, tokens


def test_metrics_of_a_step_in_which_every_prompt_was_rolled_out():
    plan = step_of(GRPO, [1, 0, 0], [2, 2], [NAN, NAN], [5, NAN, 3])
    assert plan.metrics == {
        "candidates/reward": pytest.approx((1 / 3 + 2 + 4) / 3),
        "candidates/zero_variance_groups": 0.5,
        "rollout/zero_variance_groups": 0.5,
        "prune/prompts_kept_share": 1.0,
        "prune/largest_prompt_weight": 1.0,
        "prune/prompts_with_history": 0.0,
        "prune/prompt_rate": 0.0,
    }


def planned(method, rewards, prob):
    """The plan of a step on four candidates, of which as many were kept as there are groups."""
    keep_P = torch.tensor([True, True, False, True]) & (rewards.groups > 0)
    draw = Draw(keep_N=keep_P, prob_N=tensor(prob), weight_N=keep_P / tensor(prob))
    prompts = drawn_block(Block(candidates=candidates_of([1.0] * 4), draw=draw), 2)
    rolled_out = RolledOut(rewards=rewards, tokens_N=torch.ones(len(rewards)))
    return plan_step(method, rolled_out, prompts, streams=step_streams(0, 0), max_tokens=3)


def test_metrics_of_candidates_count_a_prompt_as_those_it_stands_for():
    """A prompt kept by chance 1/2 stands for two; means over the prompts kept give other values."""
    metrics = planned(DPPO, rewards_of([1, 1], [0, 1], [0, 0]), [0.5, 0.5, 0.5, 1.0]).metrics
    assert metrics["candidates/reward"] == pytest.approx((2 * 1 + 2 * 0.5 + 0) / 5)
    assert metrics["candidates/zero_variance_groups"] == pytest.approx((2 + 1) / 5)
    assert metrics["rollout/zero_variance_groups"] == pytest.approx(2 / 3)
    assert metrics["prune/prompts_kept_share"] == 0.75


@pytest.mark.parametrize("name", ["dppo", "dppo_gspo", "cppo", "pods"])
def test_a_step_in_which_chance_rolled_nothing_out_has_metrics(name):
    """Independent draws of prompts can keep none: what nobody saw is not a number, everything else is 0."""
    nothing = Rewards(reward_NF=torch.zeros(0, 2), group_N=torch.zeros(0, dtype=torch.int64))
    plan = planned(METHODS[name], nothing, [0.5] * 4)
    assert plan.weight_UN.shape == (1, 0) and plan.signal_Q.shape == (0,) and not plan.completions.advantage_N.any()
    metrics = plan.metrics | plan.draw_metrics[0]
    unknown = {key for key, value in metrics.items() if value != value}
    of_rollouts = {"candidates/reward", "candidates/zero_variance_groups", "rollout/zero_variance_groups"}
    assert unknown == of_rollouts | {"prune/kept_share", "prune/live_share"}
    assert metrics["prune/largest_prompt_weight"] == metrics["prune/largest_weight"] == 0.0
    assert metrics["prune/prompts_kept_share"] == 0.0 and plan.sizes.denominator == 8
