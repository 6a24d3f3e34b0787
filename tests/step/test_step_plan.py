"""``plan_step``: over each real draw of the designs the mean gradient is that of the full batch, written by hand."""

from dataclasses import replace

import pytest
import torch
from pruning_enumeration import boxes_of_level
from tiny_policy import (
    CANDIDATES,
    CONTEXT,
    GROUP_N,
    GRPO_BY_HAND,
    GSPO_BY_HAND,
    LENGTH_N,
    N,
    P,
    at_rates,
    relative_error,
)
from tiny_step import DPPO, EXACT, GRPO, every_draw, gradients, plan_of, rolled_out

from dppo.methods import METHODS
from dppo.objective import BATCH_SCALED
from dppo.pruning import POISSON, Auto, Pruning, uniform_score
from dppo.step import RolledOut, UpdateSchedule, drawn_block, signals, whole_block
from dppo.types import Block, Rewards

DRAWN = {
    "pivotal": {},
    "poisson": {"design": POISSON},
    "tokens": {"budget": "tokens", "rate": 0.4},
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


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "by_hand"), [("dppo", GRPO_BY_HAND), ("dppo_threshold", GRPO_BY_HAND), ("dppo_gspo", GSPO_BY_HAND)]
)
def test_the_mean_over_real_draws_of_both_levels_is_the_full_gradient(name, by_hand, beta):
    method = at_rates(METHODS[name], 0.5, 0.5, beta=beta)
    assert not method.biases()
    assert relative_error(two_levels(method), replace(by_hand, beta=beta).gradient()) < EXACT


def test_a_router_loss_over_what_is_kept_is_biased_which_the_method_says():
    """Shares of the tokens that experts get times their mean probabilities: a product of two weighted means."""
    method = replace(DPPO, router_coef=1.0)
    share_NE, prob_NE = torch.rand(2, N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attended_N = torch.from_numpy(LENGTH_N) + 2

    def router_loss(weight_N):
        token_N = (weight_N * attended_N)[:, None]
        mean_share_E, mean_prob_E = ((token_N * value_NE).sum(0) / token_N.sum() for value_NE in (share_NE, prob_NE))
        return (mean_share_E * mean_prob_E).sum() * token_N.sum() / plan.sizes.attended

    plan, chance_U = every_draw(method, given=replace(rolled_out(), attended_N=attended_N))
    assert plan.sizes.attended == attended_N.sum() and plan_of(method).sizes.attended == 0.0
    full = router_loss(torch.ones(N, dtype=torch.float64))
    drawn_U = torch.stack([router_loss(weight_N) for weight_N in plan.weight_UN])
    assert abs(chance_U @ drawn_U / full - 1) > 1e-3
    assert "the router loss is biased under pruning" in method.biases()[0]


def test_a_step_of_rounds_is_the_step_of_the_groups_it_is_made_of():
    used_N = torch.from_numpy(GROUP_N != 1)
    some = replace(whole_block(P, int(used_N.sum())), weight_Q=torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    scaled_by_batch = replace(METHODS["dppo"], advantages=BATCH_SCALED)
    chosen = replace(METHODS["dppo"], completions=Pruning(rate=0.5, floor=0.1, auto=Auto(fewest=1, least_gain=1.0)))
    for method in (*(METHODS[name] for name in ("dppo", "dppo_dapo", "cppo", "pods")), scaled_by_batch, chosen):
        method = replace(method, beta=0.2)
        with_others = plan_of(method, prompts=some)
        alone = plan_of(method, prompts=whole_block(2, int(used_N.sum())), given=rolled_out(used_N))
        assert torch.equal(with_others.weight_UN[:, used_N], alone.weight_UN)
        assert not with_others.weight_UN[:, ~used_N].any() and not with_others.prob_UN[:, ~used_N].any()
        assert torch.equal(with_others.advantage_N[used_N], alone.advantage_N)
        assert with_others.sizes == alone.sizes
        assert torch.equal(with_others.counted_UN.sum(1), alone.counted_UN.sum(1))
        assert with_others.signal_Q[1] > 0, "the history learns from it all the same"
        if alone.samples is not None:
            assert len(with_others.samples) == len(alone.samples), "no rate is chosen by what is not used"


def test_a_completion_without_tokens_is_never_trained_on():
    given = replace(rolled_out(), tokens_N=torch.tensor([4, 0, 3, 1, 0, 3, 2]))
    for name in ("grpo", "dppo", "cppo"):
        plan = plan_of(replace(METHODS[name], beta=0.2), given=given)
        assert (plan.weight_UN[:, [1, 4]] == 0).all() and plan.sizes.denominator == N


def test_the_rates_of_a_step_follow_the_share_of_training_done():
    method = METHODS["infobatch"].with_rates(completion=0.5)
    assert [int((plan_of(method, done=done).weight_UN > 0).sum()) for done in (0.5, 0.9)] == [3, 6]


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
    equal = RolledOut(rewards=Rewards.of_groups(torch.full((1, 4), 0.3)), tokens_N=torch.ones(4))
    assert not plan_of(method, prompts=whole_block(1, 4), given=equal).completions.advantage_N.any()


@pytest.mark.parametrize("name", ["cppo", "pods"])
def test_a_ranking_is_of_whole_groups_however_many_optimizer_steps_share_them(name):
    """The wrong twin, ranked within each share: of two members of a group CPPO at 0.75 keeps none."""
    reward_PG = torch.rand(16, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = RolledOut(rewards=Rewards.of_groups(reward_PG), tokens_N=torch.full((128,), 3))
    method = METHODS[name].with_rates(completion=0.75)
    passes = (UpdateSchedule(shares=shares) for shares in (1, 4))
    plans = [plan_of(method, prompts=whole_block(16, 128), given=given, passes=each) for each in passes]
    kept = [(plan.weight_UN > 0).sum(0) for plan in plans]
    assert torch.equal(*kept) and kept[0].view(16, 8).sum(1).tolist() == [2] * 16
    alone = Rewards.of_groups(reward_PG[:, :2])
    part = plan_of(method, prompts=whole_block(16, 32), given=RolledOut(rewards=alone, tokens_N=torch.full((32,), 3)))
    assert int((part.weight_UN > 0).sum()) != 8, "a fragment keeps another share"
