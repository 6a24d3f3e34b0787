"""``plan_step``: over each real draw of the designs the mean gradient is that of the full batch, written by hand.

The optimizer steps of a rollout too: completions are dealt out to the shares of a pass, and drawn in each.
"""

from dataclasses import replace

import pytest
import tiny_policy as tiny
import torch
from pruning_enumeration import boxes_of_level
from refusals import refused
from tiny_policy import CONTEXT, GROUP_N, GRPO_BY_HAND, GSPO_BY_HAND, N, P, at_rates, relative_error, rolled_out
from tiny_step import ALL, DPPO, EVERYTHING, EXACT, GRPO, every_draw, gradients, plan_of

from dppo.errors import ShapeError
from dppo.methods import METHODS
from dppo.objective import BATCH_SCALED
from dppo.pruning import POISSON, Auto, Pruning, uniform_score
from dppo.rng import Purpose, step_streams
from dppo.step import RolledOut, UpdateSchedule, completions_of, drawn_block, whole_block
from dppo.step.schedule import deal
from dppo.types import Block, Rewards

DRAWN = {"pivotal": {}, "poisson": {"design": POISSON}, "tokens": {"budget": "tokens", "rate": 0.4}}
WITH_KL = replace(GRPO_BY_HAND, beta=0.2)


def of_groups(reward_QG, tokens=1):
    """What a step gets of these rewards, and its prompts."""
    rewards = Rewards.of_groups(reward_QG)
    given = RolledOut(rewards=rewards, tokens_N=torch.full((len(rewards),), tokens))
    return {"given": given, "prompts": whole_block(rewards.groups, len(rewards))}


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
    assert ((plan.prob_UN > 0) == ((plan.advantage_N != 0) | (beta > 0))).all(), "a KL term has a gradient everywhere"


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "by_hand"), [("dppo", GRPO_BY_HAND), ("dppo_threshold", GRPO_BY_HAND), ("dppo_gspo", GSPO_BY_HAND)]
)
def test_the_mean_over_real_draws_of_both_levels_is_the_full_gradient(name, by_hand, beta):
    method, mean = at_rates(METHODS[name], 0.5, 0.5, beta=beta), 0.0
    for box in boxes_of_level(method.prompts, tiny.CANDIDATES):
        block = Block(candidates=tiny.CANDIDATES, draw=method.prompts.draw(tiny.CANDIDATES, box.rng()))
        keep_N = block.draw.keep_N[GROUP_N]
        prompts = replace(drawn_block(block, 1), sequences=N)
        plan, chance_U = every_draw(method, prompts=prompts, given=rolled_out(keep_N))
        mean = mean + box.chance * (chance_U @ gradients(method, plan, keep_N=keep_N))
    assert not method.biases() and relative_error(mean, replace(by_hand, beta=beta).gradient()) < EXACT


def test_a_router_loss_over_what_is_kept_is_biased_which_the_method_says():
    """Shares of the tokens that experts get times their mean probabilities: a product of two weighted means."""
    method = replace(DPPO, router_coef=1.0)
    share_NE, prob_NE = torch.rand(2, N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attended_N = torch.from_numpy(tiny.LENGTH_N) + 2

    def router_loss(weight_N):
        token_N = (weight_N * attended_N)[:, None]
        mean_share_E, mean_prob_E = ((token_N * value_NE).sum(0) / token_N.sum() for value_NE in (share_NE, prob_NE))
        return (mean_share_E * mean_prob_E).sum() * token_N.sum() / plan.sizes.attended

    plan, chance_U = every_draw(method, given=replace(EVERYTHING, attended_N=attended_N))
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
    given = replace(EVERYTHING, tokens_N=torch.tensor([4, 0, 3, 1, 0, 3, 2]))
    for name in ("grpo", "dppo", "cppo"):
        plan = plan_of(replace(METHODS[name], beta=0.2), given=given)
        assert (plan.weight_UN[:, [1, 4]] == 0).all() and plan.sizes.denominator == N


def test_the_rates_of_a_step_follow_the_share_of_training_done():
    method = METHODS["infobatch"].with_rates(completion=0.5)
    assert [int((plan_of(method, done=done).weight_UN > 0).sum()) for done in (0.5, 0.9)] == [3, 6]


def test_a_flat_group_has_no_signal_whatever_the_score():
    """With the uniform score it was 2.0 in one of five copies of the step, the root of its four completions."""
    method = replace(GRPO, completions=Pruning(score=uniform_score))
    flat = of_groups(torch.tensor([[0.3] * 4, [0, 1, 0, 0]]))
    plan = plan_of(method, **flat)
    assert plan.signal_Q.tolist() == [0.0, 2.0]
    forwarded = plan_of(method, **flat, live=lambda a_N: torch.ones_like(a_N).bool())
    assert torch.equal(forwarded.signal_Q, plan.signal_Q), "nor if a caller forwards it all the same"
    assert plan_of(replace(method, beta=0.1), **flat).signal_Q.tolist() == [2.0, 2.0], "a KL term gives it one"
    assert not plan_of(method, **of_groups(torch.full((1, 4), 0.3))).completions.advantage_N.any()


@pytest.mark.parametrize("name", ["cppo", "pods"])
def test_a_ranking_is_of_whole_groups_however_many_optimizer_steps_share_them(name):
    """The wrong twin, ranked within each share: of two members of a group CPPO at 0.75 keeps none."""
    reward_PG = torch.rand(16, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = METHODS[name].with_rates(completion=0.75)
    plans = [plan_of(method, **of_groups(reward_PG, 3), passes=UpdateSchedule(shares=shares)) for shares in (1, 4)]
    kept = [(plan.weight_UN > 0).sum(0) for plan in plans]
    assert torch.equal(*kept) and kept[0].view(16, 8).sum(1).tolist() == [2] * 16
    part = plan_of(method, **of_groups(reward_PG[:, :2], 3))
    assert int((part.weight_UN > 0).sum()) != 8, "a fragment keeps another share"


@pytest.mark.parametrize("shares", [2, 3, 4])
def test_shares_are_near_equal_on_every_process(shares):
    """Processes of 7, 4 and 1 completions that lie among each other."""
    process_N = torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 0])
    for seed in range(20):
        share_N = deal(process_N, shares, step_streams(seed, 3))
        for process in range(3):
            sizes = torch.bincount(share_N[process_N == process], minlength=shares)
            assert sizes.max() - sizes.min() <= 1 and len(sizes) == shares


def test_every_completion_is_as_likely_in_every_share():
    """Five completions make shares of three and two. A deal that always begins with share 0 fails."""
    seeds, five = 3000, torch.zeros(5, dtype=torch.int64)
    share_SN = torch.stack([deal(five, 2, step_streams(seed, 3)) for seed in range(seeds)])
    spread = (0.25 / seeds) ** 0.5
    assert ((share_SN.double().mean(0) - 0.5).abs() < 5 * spread).all()
    assert abs(3 / 5 - 0.5) > 5 * spread, "what it would be then"


def test_prompts_are_drawn_for_each_share_where_they_come_out_even():
    cases = {(1, 7, 1): 1, (4, 16, 1): 4, (4, 10, 1): 1, (4, 4, 1): 1, (2, 12, 3): 2, (2, 6, 3): 1}
    for (shares, prompts, multiple), parts in cases.items():
        assert UpdateSchedule(passes=3, shares=shares).parts(prompts, multiple) == parts


def test_completions_of_prompts_that_were_drawn_for_a_share_are_trained_in_it():
    part_Q, passes = torch.arange(P) % 2, UpdateSchedule(passes=2, shares=2)
    prompts = replace(ALL, part_Q=part_Q)
    plan = plan_of(DPPO, prompts=prompts, passes=passes)
    share_N = part_Q[plan.rewards.group_N]
    assert torch.equal(plan.share_UN, torch.stack([share_N == 0, share_N == 1] * 2))
    assert not torch.equal(plan.share_UN, plan_of(DPPO, passes=passes).share_UN)
    with refused(ShapeError, "2 shares", "a pass has 1", "parts=passes.parts(prompts)"):
        plan_of(DPPO, prompts=prompts)


@pytest.mark.parametrize("shares", [2, 3])
def test_the_shares_of_a_pass_add_up_to_the_full_gradient(shares):
    """For every deal by itself: each completion is drawn in one share, over the denominator of the whole pass."""
    method = replace(DPPO, completions=Pruning(rate=0.5, score=uniform_score), beta=0.2)
    for seed in range(4):
        real, got = step_streams(seed, 0), 0.0
        dealt = plan_of(method, streams=real, passes=UpdateSchedule(shares=shares))
        assert (dealt.share_UN.sum(0) == 1).all() and dealt.sizes.denominator == N
        for share, row_N in enumerate(dealt.share_UN):
            boxes = boxes_of_level(method.completions, completions_of(method, EVERYTHING, CONTEXT).take(row_N))

            def streams(purpose, *key, boxes=boxes, real=real, share=share):
                mine = purpose == Purpose.COMPLETION_DRAW and key[0] % shares == share
                return boxes[key[0] // shares].rng() if mine else real(purpose, *key)

            plan = plan_of(method, streams=streams, passes=UpdateSchedule(passes=len(boxes), shares=shares))
            assert torch.equal(plan.share_UN[: len(boxes)], dealt.share_UN.repeat(len(boxes), 1)[: len(boxes)])
            chance_U = torch.tensor([box.chance for box in boxes], dtype=torch.float64)
            got = got + chance_U @ gradients(method, plan, plan.weight_UN[share::shares])
        assert relative_error(got, WITH_KL.gradient()) < EXACT
