"""A baseline from history, by enumeration of all completions and draws: its gradient is that of the mean reward."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import candidates_of, tensor
from drafts import Run, draft_of
from refusals import refused

from dppo.context import Expected, StepContext
from dppo.groups import each_group
from dppo.methods import METHODS
from dppo.objective import DAPO_TOKENS, HISTORY_SCALED, AdvantageRule, emphasised
from dppo.pruning import POISSON, Pruning
from dppo.step import RolledOut, drawn_block, plan_step
from dppo.types import Block, Draw, Rewards
from dppo.verification.enumerate import every_way

P, ANSWERS = 2, 3
REWARD_PA = np.array([[1.0, 0.0, 0.3], [0.0, 0.2, 1.0]])
THETA_PA = np.array([[0.3, -0.2, 0.9], [-1.0, 0.4, 0.6]])
PROB_PA = np.exp(THETA_PA) / np.exp(THETA_PA).sum(1, keepdims=True)
EXPECTED = Expected(
    mean_QF=tensor([[0.4], [0.8]]), variance_QF=tensor([[0.2], [0.1]]), strength_QF=tensor([[3.0], [1.5]])
)
PLAIN = replace(METHODS["grpo_history"], completions=Pruning())
PRUNED = replace(PLAIN, completions=Pruning(rate=0.5, design=POISSON))
SCALED = replace(PLAIN, advantages=HISTORY_SCALED)
WHOLE = Draw.whole(torch.ones(P).bool())


def error(method, sizes, *, prob_P=None, scale_P=(1.0, 1.0), **changes):
    """Bias of the mean gradient over all completions and draws, with prompts drawn by ``prob_P``."""

    def once(tape):
        draw = WHOLE
        if prob_P is not None:
            keep_P = torch.tensor([tape.choose([prob, 1 - prob]) == 0 for prob in prob_P])
            draw = Draw(keep_N=keep_P, prob_N=tensor(prob_P), weight_N=keep_P / tensor(prob_P))
        found = np.zeros((P, ANSWERS))
        if not draw.keep_N.any():
            return found
        block = Block(candidates=candidates_of([1.0] * P), draw=draw)
        prompts = drawn_block(block, 2, torch.tensor(sizes)[draw.keep_N])
        prompts = replace(prompts, context=StepContext(expected=EXPECTED).take(draw.keep_N), **changes)
        group_N = torch.arange(len(prompts.row_Q)).repeat_interleave(prompts.size_Q)
        row_N = prompts.row_Q[group_N].tolist()
        answer_N = [tape.choose(PROB_PA[row]) for row in row_N]
        rewards = Rewards(reward_NF=tensor(REWARD_PA[row_N, answer_N])[:, None], group_N=group_N)
        rolled_out = RolledOut(rewards=rewards, tokens_N=torch.ones(len(row_N)))
        plan = plan_step(method, rolled_out, prompts, streams=lambda *key: tape, max_tokens=1)
        factor_N = plan.weight_UN[0] * plan.advantage_N / plan.sizes.denominator
        for row, answer, factor in zip(row_N, answer_N, factor_N.tolist(), strict=True):
            found[row] += factor * (np.eye(ANSWERS)[answer] - PROB_PA[row])
        return found

    mean_P1 = (PROB_PA * REWARD_PA).sum(1, keepdims=True)
    wanted = PROB_PA * (REWARD_PA - mean_P1) / P / np.array(scale_P)[:, None]  # by the quotient rule of a softmax
    return np.abs(sum(way * found for found, way in every_way(once)) - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 3), (4, 2)], ids=str)
def test_the_expected_gradient_is_that_of_the_mean_reward_for_every_group_size(sizes):
    assert error(PLAIN, sizes) < 1e-12


def test_completions_drawn_by_score_and_prompts_pruned_leave_it_there_and_flat_groups_are_drawn_too():
    assert error(PRUNED, (1, 1)) < 1e-12 and error(PRUNED, (2, 1)) < 1e-12
    assert error(PLAIN, (2, 1), prob_P=[0.4, 0.7]) < 1e-12


def test_a_deviation_from_history_weights_prompts_by_what_was_settled_before():
    scale_P = EXPECTED.variance_QF[:, 0].sqrt().numpy() + 0.1
    assert error(SCALED, (1, 1), scale_P=scale_P) < 1e-12 and error(SCALED, (3, 1), scale_P=scale_P) < 1e-12


def own_reward_in_its_baseline(rewards, context):
    mean_Q = each_group(lambda reward_QG: reward_QG.mean(1), rewards.group_N, rewards.total_N)
    return rewards.total_N - 0.5 * (mean_Q + context.expected.mean_QF[:, 0])[rewards.group_N]


OWN = AdvantageRule(name="twin", compute=own_reward_in_its_baseline, from_history=True)


def test_wrong_twins_are_seen():
    """Divided by a deviation, its own reward in a baseline, and completions that count alike: for large groups."""
    assert error(SCALED, (1, 1)) > 1e-2
    for sizes in ((2, 2), (1, 3)):
        assert error(replace(PLAIN, advantages=OWN), sizes) > 1e-2
    assert error(PLAIN, (1, 3), weight_Q=torch.ones(P).double()) > 1e-2


def rolled_out_by(block, seed):
    size_Q = torch.full_like(block.row_Q, 4) if block.size_Q is None else block.size_Q
    group_N = torch.arange(len(size_Q)).repeat_interleave(size_Q)
    right_N = np.random.default_rng(seed).random(len(group_N)) < np.linspace(0, 1, 12)[block.row_Q[group_N].numpy()]
    return Rewards(reward_NF=torch.tensor(right_N)[:, None].double(), group_N=group_N)


def test_a_source_gives_sizes_and_expectations_from_before_the_step():
    source = Run.over(12, METHODS["dppo_history_sizes"], prompts=6, seed=3, half_life=1000.0)
    for step in range(40):
        block = source.block(step, generations=4)
        assert block.sequences == 24
        if step == 0:
            assert block.size_Q is None and block.context.expected is None
        else:
            assert int(block.size_Q.sum()) == 24
            torch.testing.assert_close(block.weight_Q, 4 / block.size_Q.double())
            before = source.history.expected(block.row_Q, step)
            assert torch.equal(before.mean_QF, block.context.expected.mean_QF)
        source.learn(draft_of(source.method, block, rolled_out_by(block, step)), step)
    assert len(block.size_Q.unique()) > 1
    settled = (block.context.expected.mean_QF[:, 0] - 0.5).abs()
    assert (block.size_Q[settled.argsort()].diff() <= 0).all(), "more where history is undecided"


def test_what_is_not_exact_for_every_size_says_so_or_is_refused():
    method = METHODS["dppo_history_sizes"]
    with refused(Exception, "size"):
        replace(method, advantages=emphasised(method.advantages, 0.5))
    over_tokens = replace(method, entropy_coef=0.1, normaliser=DAPO_TOKENS)
    assert not over_tokens.biases(), "tokens are those that history expects"
    with_router = replace(method, router_coef=0.1).with_rates(completion=0)
    assert any("router loss" in reason for reason in with_router.biases())
