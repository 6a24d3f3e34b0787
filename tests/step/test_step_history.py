"""A baseline from history, by enumeration of all completions and draws: its gradient is that of the mean reward."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import candidates_of
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
    mean_QF=torch.tensor([[0.4], [0.8]]).double(),
    variance_QF=torch.tensor([[0.2], [0.1]]).double(),
    strength_QF=torch.tensor([[3.0], [1.5]]).double(),
)
EXACT, BIASED = 1e-12, 1e-2
PLAIN = replace(METHODS["grpo_history"], completions=Pruning())
SIZES = [(1, 1), (2, 2), (1, 3), (4, 2)]


def gradient_of_the_mean_reward(scale_P=(1.0, 1.0)):
    """(P, ANSWERS) by the quotient rule of a softmax: p_a (R_a - mean R)."""
    mean_P1 = (PROB_PA * REWARD_PA).sum(1, keepdims=True)
    return PROB_PA * (REWARD_PA - mean_P1) / P / np.array(scale_P)[:, None]


def prompts_of(draw: Draw, sizes):
    block = drawn_block(Block(candidates=candidates_of([1.0] * P), draw=draw), 2, torch.tensor(sizes)[draw.keep_N])
    return replace(block, context=StepContext(expected=EXPECTED).take(draw.keep_N))


ALL = Draw.whole(torch.ones(P).bool())


def estimate(plan, answers, prompts):
    """(P, ANSWERS) the step's gradient of the reward: weight times advantage times that of log p, over the count."""
    found = np.zeros((P, ANSWERS))
    weight_N, group_N = (plan.weight_UN[0] * plan.advantage_N).numpy(), plan.rewards.group_N.numpy()
    for answer, weight, prompt in zip(answers, weight_N, prompts.row_Q.numpy()[group_N], strict=True):
        found[prompt] += weight * (np.eye(ANSWERS)[answer] - PROB_PA[prompt])
    return found / plan.sizes.denominator


def expectation(method, sizes, draw=ALL, **changes):
    """Mean gradient over all completions of the prompts kept and all draws among them."""
    total, prompts = np.zeros((P, ANSWERS)), replace(prompts_of(draw, sizes), **changes)
    rows = [int(row) for row, size in zip(prompts.row_Q, prompts.size_Q, strict=True) for _ in range(size)]
    group_N = torch.arange(len(prompts.row_Q)).repeat_interleave(prompts.size_Q)
    for answers in itertools.product(range(ANSWERS), repeat=len(rows)):
        chance = np.prod([PROB_PA[row, answer] for row, answer in zip(rows, answers, strict=True)])
        reward_NF = torch.tensor([[REWARD_PA[row, answer]] for row, answer in zip(rows, answers, strict=True)])
        rewards = Rewards(reward_NF=reward_NF.double(), group_N=group_N)
        rolled_out = RolledOut(rewards=rewards, tokens_N=torch.ones(len(rows)))

        def once(tape, rolled_out=rolled_out, answers=answers):
            plan = plan_step(method, rolled_out, prompts, streams=lambda *key: tape, max_tokens=1)
            return estimate(plan, answers, prompts)

        total += chance * sum(way * found for found, way in every_way(once))
    return total


def error(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_expected_gradient_is_that_of_the_mean_reward_for_every_group_size(sizes):
    assert error(expectation(PLAIN, sizes), gradient_of_the_mean_reward()) < EXACT


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1)], ids=str)
def test_completions_drawn_by_score_leave_it_there_and_flat_groups_are_drawn_too(sizes):
    pruned = replace(PLAIN, completions=Pruning(rate=0.5, design=POISSON))
    assert error(expectation(pruned, sizes), gradient_of_the_mean_reward()) < EXACT


def test_prompts_pruned_leave_it_there():
    total = np.zeros((P, ANSWERS))
    prob_P = torch.tensor([0.4, 0.7]).double()
    for keep in itertools.product([False, True], repeat=P):
        keep_P = torch.tensor(keep)
        if keep_P.any():
            chance = float(torch.where(keep_P, prob_P, 1 - prob_P).prod())
            draw = Draw(keep_N=keep_P, prob_N=prob_P, weight_N=keep_P / prob_P)
            total += chance * expectation(PLAIN, (2, 1), draw)
    assert error(total, gradient_of_the_mean_reward()) < EXACT


def test_a_deviation_from_history_weights_prompts_by_what_was_settled_before():
    scaled = replace(PLAIN, advantages=HISTORY_SCALED)
    scale_P = EXPECTED.variance_QF[:, 0].sqrt().numpy() + 0.1
    for sizes in ((1, 1), (3, 1)):
        assert error(expectation(scaled, sizes), gradient_of_the_mean_reward(scale_P)) < EXACT
    assert error(expectation(scaled, (1, 1)), gradient_of_the_mean_reward()) > BIASED


def own_reward_in_its_baseline(rewards, context):
    mean_Q = each_group(lambda reward_QG: reward_QG.mean(1), rewards.group_N, rewards.total_N)
    return rewards.total_N - 0.5 * (mean_Q + context.expected.mean_QF[:, 0])[rewards.group_N]


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3)], ids=str)
def test_wrong_twin_own_reward_in_its_baseline(sizes):
    twin = AdvantageRule(name="twin", compute=own_reward_in_its_baseline, from_history=True)
    assert error(expectation(replace(PLAIN, advantages=twin), sizes), gradient_of_the_mean_reward()) > BIASED


def test_wrong_twin_completions_counted_alike_favours_large_groups():
    found = expectation(PLAIN, (1, 3), weight_Q=torch.ones(P).double())
    assert error(found, gradient_of_the_mean_reward()) > BIASED


def rolled_out_by(step, seed, generations=2):
    size_Q = torch.full_like(step.row_Q, generations) if step.size_Q is None else step.size_Q
    group_N = torch.arange(len(size_Q)).repeat_interleave(size_Q)
    rng = np.random.default_rng(seed)
    right_N = rng.random(len(group_N)) < np.linspace(0, 1, 12)[step.row_Q[group_N].numpy()]
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
        source.learn(draft_of(source.method, block, rolled_out_by(block, step, generations=4)), step)
    assert len(block.size_Q.unique()) > 1
    settled = (block.context.expected.mean_QF[:, 0] - 0.5).abs()
    assert (block.size_Q[settled.argsort()].diff() <= 0).all(), "more where history is undecided"


def test_what_is_not_exact_for_every_size_says_so_or_is_refused():
    method = METHODS["dppo_history_sizes"]
    with refused(Exception, "size"):
        replace(method, advantages=emphasised(method.advantages, 0.5))
    over_tokens, with_router = (
        replace(method, entropy_coef=0.1, normaliser=DAPO_TOKENS),
        replace(method, router_coef=0.1),
    )
    assert not over_tokens.biases(), "tokens are those that history expects"
    assert any("router loss" in reason for reason in with_router.with_rates(completion=0).biases())
