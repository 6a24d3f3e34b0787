"""``plan_step``: over every real draw its gradient has the full batch's as its mean, whatever the sizes of groups.

The draws are those of the designs themselves, each with its chance (``pruning_enumeration``). The full gradient is
written out by hand (``tiny_policy``). Every way to get the order of the steps wrong is shown to be biased.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pruning_enumeration import boxes_of_level
from tiny_policy import (
    CANDIDATES,
    CONTEXT,
    GROUP_N,
    GRPO_BY_HAND,
    LENGTH_N,
    REWARD_NF,
    WEIGHT_F,
    N,
    P,
    T,
    at_rates,
    centred,
    relative_error,
    rewards,
    surrogate,
)
from tiny_step import ALL, DPPO, EXACT, GRPO, every_draw, gradients, plan_of, rolled_out

from dppo.methods import METHODS
from dppo.objective import BATCH_SCALED, GROUP_SCALED, NORMALISERS
from dppo.pruning import DESIGNS, PIVOTAL, POISSON, Pruning, uniform_score
from dppo.rng import step_streams
from dppo.step import Passes, RolledOut, StepPrompts, completions_of, drawn_block, signals, whole_block
from dppo.types import Block, Rewards

# Unbiased: completions.

DRAWN = {
    "pivotal": {},
    "poisson": {"design": POISSON},
    "tokens": {"budget": "tokens", "rate": 0.4},
    "a high floor": {"floor": 0.4},
    "uniform": {"score": uniform_score},
}


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("drawn", DRAWN)
def test_the_mean_over_every_real_draw_is_the_full_gradient(drawn, beta):
    method = replace(DPPO, completions=replace(DPPO.completions, **DRAWN[drawn]), beta=beta)
    plan, chance_U = every_draw(method)
    assert chance_U.sum().item() == pytest.approx(1.0, abs=EXACT) and len(chance_U) > 5
    by_hand = replace(GRPO_BY_HAND, beta=beta)
    assert relative_error(chance_U @ gradients(method, plan), by_hand.gradient()) < EXACT
    kept_U = (plan.weight_UN > 0).sum(1)
    assert (len(set(kept_U.tolist())) <= 2) == method.completions.design.fixed_size
    assert (plan.prob_UN == plan.prob_UN[0]).all(), "what is drawn says nothing about the next draw"
    if beta:
        assert (plan.prob_UN > 0).all(), "with a KL term a completion without an advantage has a gradient"
    else:
        assert ((plan.prob_UN > 0) == (plan.advantage_N != 0)).all()


ADVANTAGES = {
    "grpo": GRPO_BY_HAND.advantage_N,
    "dr_grpo": centred(REWARD_NF @ WEIGHT_F),
    "dppo_dapo": GRPO_BY_HAND.advantage_N,
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_of_several_functions_and_sizes_are_those_by_hand_and_no_draw_moves_them(name):
    method = at_rates(METHODS[name], 0.0, 0.5)
    plan, _ = every_draw(method)
    torch.testing.assert_close(plan.advantage_N, torch.from_numpy(ADVANTAGES[name]), rtol=0, atol=EXACT)
    assert plan.advantage_N is plan.completions.advantage_N


@pytest.mark.parametrize("name", NORMALISERS)
def test_the_denominator_is_that_of_the_full_batch(name):
    method = replace(DPPO, normaliser=NORMALISERS[name])
    expected = {"grpo": N, "dr_grpo": N * T, "dapo": LENGTH_N.sum(), "bnpo": LENGTH_N.sum(), "luspo": N}[name]
    assert plan_of(method).denominator == expected
    assert plan_of(method).tokens == LENGTH_N.sum()


def test_an_entropy_bonus_keeps_every_completion_in_the_draw():
    method = replace(DPPO, entropy_coef=0.3)
    plan, chance_U = every_draw(method)
    assert (plan.prob_UN > 0).all()
    got = chance_U @ gradients(method, plan)
    assert relative_error(got, replace(GRPO_BY_HAND, entropy_coef=0.3).gradient()) < EXACT


# The wrong versions.


def survivors_advantages(method, plan, kept_N):
    return method.advantages(rewards().only(kept_N), CONTEXT)


MISTAKES = {
    "weights forgotten": lambda m, p: gradients(m, p, (p.weight_UN > 0).double()),
    "a denominator of survivors": lambda m, p: (
        gradients(m, p) * N / (p.weight_UN > 0).sum(1, keepdim=True).clamp_min(1)
    ),
    "advantages after pruning": lambda m, p: torch.cat(
        [
            gradients(m, p, weight_N[None], advantage_N=survivors_advantages(m, p, weight_N > 0))
            for weight_N in p.weight_UN
        ]
    ),
    "weights of another draw": lambda m, p: gradients(m, p, (p.weight_UN > 0) * p.weight_UN.roll(1, 0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(mistake):
    """One mistake away from the step; independent draws, so that a denominator of survivors is one."""
    method = replace(DPPO, completions=replace(DPPO.completions, design=POISSON))
    plan, chance_U = every_draw(method)
    assert relative_error(chance_U @ MISTAKES[mistake](method, plan), GRPO_BY_HAND.gradient()) > 1e-2


# Unbiased: both levels, by real draws of either.


def two_levels(method, of_plan=gradients):
    """Exact mean of ``of_plan`` over the draws of prompts and then of completions."""
    mean = 0.0
    for box in boxes_of_level(method.prompts, CANDIDATES):
        block = Block(candidates=CANDIDATES, draw=method.prompts.draw(CANDIDATES, box.rng()))
        keep_N = block.draw.keep_N[GROUP_N]
        prompts = replace(drawn_block(block, 1), sequences=N)
        plan, chance_U = every_draw(method, prompts=prompts, given=rolled_out(keep_N))
        mean = mean + box.chance * (chance_U @ of_plan(method, plan, keep_N=keep_N))
    return mean


GSPO_BY_HAND = replace(GRPO_BY_HAND, loss=surrogate(3e-4, 4e-4, whole=True))


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "by_hand"), [("dppo", GRPO_BY_HAND), ("dppo_threshold", GRPO_BY_HAND), ("dppo_gspo", GSPO_BY_HAND)]
)
def test_the_mean_over_real_draws_of_both_levels_is_the_full_gradient(name, by_hand, beta):
    method = at_rates(METHODS[name], 0.5, 0.5, beta=beta)
    assert not method.biases()
    assert relative_error(two_levels(method), replace(by_hand, beta=beta).gradient()) < EXACT


def test_a_prompt_weight_that_is_forgotten_is_caught():
    method = at_rates(DPPO, 0.5, 0.5, beta=0.2)

    def forgotten(method, plan, *, keep_N):
        weight_N = plan.prompts.weight_Q[plan.completions.group_N]
        return gradients(method, plan, plan.weight_UN / weight_N, keep_N=keep_N)

    assert relative_error(two_levels(method, forgotten), replace(GRPO_BY_HAND, beta=0.2).gradient()) > 1e-2


def test_tokens_of_prompts_that_were_not_rolled_out_are_estimated_without_bias():
    """The estimate is; what is divided by it is not, which the method says."""
    method = at_rates(METHODS["dppo_dapo"], 0.5, 0.0)
    mean = 0.0
    for box in boxes_of_level(method.prompts, CANDIDATES):
        block = Block(candidates=CANDIDATES, draw=method.prompts.draw(CANDIDATES, box.rng()))
        prompts = replace(drawn_block(block, 1), sequences=N)
        plan = plan_of(method, prompts=prompts, given=rolled_out(block.draw.keep_N[GROUP_N]))
        assert plan.tokens == plan.denominator
        mean += box.chance * plan.tokens
    assert mean == pytest.approx(LENGTH_N.sum(), abs=1e-9)
    assert "the dapo normaliser is biased under prompt pruning" in method.biases()[0]


def test_a_router_loss_over_what_is_kept_is_biased_which_the_method_says():
    """Shares of the tokens that experts get times their mean probabilities: a product of two weighted means."""
    method = replace(DPPO, router_coef=1.0)
    share_NE, prob_NE = torch.rand(2, N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attended_N = torch.from_numpy(LENGTH_N) + 2

    def router_loss(weight_N):
        token_N = (weight_N * attended_N)[:, None]
        mean_share_E, mean_prob_E = ((token_N * value_NE).sum(0) / token_N.sum() for value_NE in (share_NE, prob_NE))
        return (mean_share_E * mean_prob_E).sum() * token_N.sum() / plan.attended

    plan, chance_U = every_draw(method, given=replace(rolled_out(), attended_N=attended_N))
    assert plan.attended == attended_N.sum() and plan_of(method).attended == 0.0
    full = router_loss(torch.ones(N, dtype=torch.float64))
    drawn_U = torch.stack([router_loss(weight_N) for weight_N in plan.weight_UN])
    assert abs(chance_U @ drawn_U / full - 1) > 1e-3
    assert "the router loss is biased under pruning" in method.biases()[0]


# Groups of different sizes.


@pytest.mark.parametrize("rule", [GROUP_SCALED, METHODS["dr_grpo"].advantages], ids=lambda rule: rule.name)
def test_a_group_has_the_same_bits_whatever_else_is_in_the_step(rule):
    method = replace(GRPO, advantages=rule, beta=0.2)
    together = plan_of(method)
    for group in range(P):
        keep_N = torch.from_numpy(group == GROUP_N)
        alone = plan_of(method, prompts=whole_block(1, int(keep_N.sum())), given=rolled_out(keep_N))
        assert torch.equal(together.advantage_N[keep_N], alone.advantage_N)
        assert torch.equal(together.score_N[keep_N], alone.score_N)
        assert torch.equal(together.signal_Q[group], alone.signal_Q[0])


def test_groups_may_lie_in_any_order_and_completions_among_each_other():
    """Every completion gets what it gets where it lies; only fixed-size draws go by the order."""
    method = replace(DPPO, beta=0.2)
    mix_N = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    given = rolled_out()
    mixed = replace(
        given,
        rewards=replace(given.rewards, reward_NF=given.rewards.reward_NF[mix_N], group_N=given.rewards.group_N[mix_N]),
        tokens_N=given.tokens_N[mix_N],
        confidence_N=given.confidence_N[mix_N],
    )
    plain, moved = plan_of(method), plan_of(method, given=mixed)
    assert (moved.denominator, moved.tokens) == (plain.denominator, plain.tokens)
    torch.testing.assert_close(moved.prob_UN, plain.prob_UN[:, mix_N], rtol=1e-12, atol=0)
    torch.testing.assert_close(moved.advantage_N, plain.advantage_N[mix_N], rtol=1e-12, atol=0)
    torch.testing.assert_close(moved.signal_Q, plain.signal_Q, rtol=1e-12, atol=0)


# Rounds: groups that the step is not made of.


def test_a_step_of_rounds_is_the_step_of_the_groups_it_is_made_of():
    used_N = torch.from_numpy(GROUP_N != 1)
    some = StepPrompts(
        candidates=CANDIDATES,
        draw=ALL.draw,
        row_Q=torch.arange(P),
        prob_Q=ALL.prob_Q,
        weight_Q=torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
        sequences=int(used_N.sum()),
    )
    scaled_by_batch = replace(METHODS["dppo"], advantages=BATCH_SCALED)
    for method in (*(METHODS[name] for name in ("dppo", "dppo_dapo", "cppo", "pods")), scaled_by_batch):
        method = replace(method, beta=0.2)
        with_others = plan_of(method, prompts=some)
        alone = plan_of(method, prompts=whole_block(2, int(used_N.sum())), given=rolled_out(used_N))
        assert torch.equal(with_others.weight_UN[:, used_N], alone.weight_UN)
        assert not with_others.weight_UN[:, ~used_N].any() and not with_others.prob_UN[:, ~used_N].any()
        assert torch.equal(with_others.advantage_N[used_N], alone.advantage_N)
        assert (with_others.denominator, with_others.tokens) == (alone.denominator, alone.tokens)
        assert torch.equal(with_others.sequences_U, alone.sequences_U)
        assert with_others.signal_Q[1] > 0, "the history learns from it all the same"


# Selections with statistics of their own.


def test_advantages_of_kept_completions_are_those_that_some_draw_keeps():
    """PODS with two passes: without chance both keep the same, so the statistics are those of one."""
    pods = METHODS["pods"]
    once, twice = plan_of(pods), plan_of(pods, passes=Passes(passes=2))
    assert torch.equal(once.advantage_N, twice.advantage_N)
    assert torch.equal(twice.weight_UN, once.weight_UN.repeat(2, 1))
    assert not torch.equal(once.advantage_N, once.completions.advantage_N)
    unpruned = plan_of(pods.with_rates(completion=0.0))
    assert unpruned.advantage_N is unpruned.completions.advantage_N


# What is not forwarded.


def test_a_completion_without_tokens_is_never_trained_on():
    given = replace(rolled_out(), tokens_N=torch.tensor([4, 0, 3, 1, 0, 3, 2]))
    for name in ("grpo", "dppo", "cppo"):
        plan = plan_of(replace(METHODS[name], beta=0.2), given=given)
        assert (plan.weight_UN[:, [1, 4]] == 0).all() and plan.denominator == N


def test_what_is_worth_a_forward_pass_can_be_decided_by_the_caller():
    """Plain GRPO forwards completions without an advantage too; their gradient is zero either way."""
    everything = plan_of(GRPO, live=lambda advantage_N: torch.ones(N, dtype=torch.bool))
    assert (everything.weight_UN == 1).all() and (plan_of(GRPO).weight_UN == 0).sum() == 1


def test_the_rates_of_a_step_follow_the_share_of_training_done():
    method = METHODS["infobatch"].with_rates(completion=0.5)
    assert [int((plan_of(method, done=done).weight_UN > 0).sum()) for done in (0.5, 0.9)] == [3, 6]


# What the history learns.


@pytest.mark.parametrize("name", ["grpo", "dppo", "dapo", "cppo"])
def test_the_signal_of_a_group_is_the_root_of_its_squared_scores(name):
    method, given = METHODS[name], rolled_out()
    plan = plan_of(method)
    completions = completions_of(method, given, CONTEXT)
    assert torch.equal(plan.score_N, method.score(completions)), "all of which are 0 without an advantage"
    by_hand = [
        sum(s**2 for s, group in zip(method.score(completions).tolist(), GROUP_N, strict=True) if group == q) ** 0.5
        for q in range(P)
    ]
    assert plan.signal_Q.tolist() == pytest.approx(by_hand)
    assert torch.equal(signals(method, given, CONTEXT), plan.signal_Q)


def test_a_flat_group_has_no_signal_whatever_the_score():
    """With the uniform score it was 2.0 in one of five copies of the step, the root of its four completions."""
    method = replace(GRPO, completions=Pruning(score=uniform_score))
    flat = RolledOut(rewards=Rewards.of_groups(torch.tensor([[0.3] * 4, [0.0, 1.0, 0.0, 0.0]])), tokens_N=torch.ones(8))
    plan = plan_of(method, prompts=whole_block(2, 8), given=flat)
    assert plan.signal_Q.tolist() == signals(method, flat, CONTEXT).tolist() == [0.0, 2.0]
    forwarded = plan_of(method, prompts=whole_block(2, 8), given=flat, live=lambda a_N: torch.ones_like(a_N).bool())
    assert torch.equal(forwarded.signal_Q, plan.signal_Q), "nor if a caller forwards it all the same"
    with_kl = plan_of(replace(method, beta=0.1), prompts=whole_block(2, 8), given=flat)
    assert with_kl.signal_Q.tolist() == [2.0, 2.0], "a KL term gives it one"
    assert plan.learnable and not plan_of(method, prompts=whole_block(1, 4), given=RolledOut(
        rewards=Rewards.of_groups(torch.full((1, 4), 0.3)), tokens_N=torch.ones(4))).learnable  # fmt: skip


def test_the_batch_rule_sees_the_prompts_that_were_rolled_out_and_says_so():
    method = at_rates(replace(DPPO, advantages=BATCH_SCALED), 0.5, 0.0)
    keep_N = torch.from_numpy(GROUP_N != 2)
    some = plan_of(replace(method, prompts=DPPO.prompts), prompts=whole_block(2, 5), given=rolled_out(keep_N))
    assert not torch.allclose(some.advantage_N, plan_of(method).advantage_N[keep_N], rtol=1e-3)
    assert "the batch advantage is biased" in method.biases()[0]


# The same step again.


def test_equal_streams_give_equal_plans_and_other_steps_other_ones():
    plans = [plan_of(DPPO, streams=step_streams(seed, step)) for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert torch.equal(plans[0].weight_UN, plans[1].weight_UN)
    assert len({tuple(plan.weight_UN[0].tolist()) for plan in plans}) > 1


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_probabilities_do_not_depend_on_the_design(design):
    method = replace(DPPO, completions=replace(DPPO.completions, design=design))
    assert torch.equal(plan_of(method).prob_UN, plan_of(DPPO).prob_UN)
    assert DPPO.completions.design is PIVOTAL


def test_what_pruning_looks_at_is_what_was_rolled_out():
    """Means within completions are told to scores by what sums are divided by."""
    given = replace(rolled_out(), process_N=torch.arange(N) % 2)
    for name, averaged in (("grpo", LENGTH_N.tolist()), ("dapo", None)):
        completions = completions_of(METHODS[name], given, CONTEXT)
        assert (completions.averaged_N is None) if averaged is None else completions.averaged_N.tolist() == averaged
        assert completions.process_N is given.process_N and completions.confidence_N is given.confidence_N
        assert completions.live_N.tolist() == (np.abs(GRPO_BY_HAND.advantage_N) > 0).tolist()
