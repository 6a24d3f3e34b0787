"""Schemes of papers: DPPO's rules and its control, InfoBatch of prompts and rows, and the skipping of GRESO."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import candidates_of, rewards_of
from one_step import kept, step_of
from refusals import refused
from tiny_policy import at_rates, full_gradient, relative_error

from dppo.errors import ConfigError
from dppo.methods import METHODS, OBJECTIVES, ROW_METHODS, SCHEMES, combined
from dppo.methods.greso import EASY, HARD, NEITHER, Exploration, by_mean, by_variance, mixed
from dppo.pruning import KEPT_MEAN, PIVOTAL, RecordedScores, RoundRequest
from dppo.pruning.rounds import Collected
from dppo.rng import Purpose, generator
from dppo.step import RowSource
from dppo.verification.enumerate import every_way

DPPO, THRESHOLD = METHODS["dppo"], METHODS["dppo_threshold"]
INFOBATCH, ROWS_METHOD = METHODS["infobatch"], ROW_METHODS["infobatch"]
ROUNDS, SKIPPING = METHODS["greso"].rounds, METHODS["greso"].rounds.skipping
COMPAT_SKIPPING = METHODS["greso_compat"].rounds.skipping
RARE = [1, 0, 0, 0, 0, 0, 0, 0]
"""The mean of abs(A) is between the one that is right, 2.47, and the others, 0.35."""


def test_the_papers_rule_drops_completions_below_the_mean_with_the_rate():
    for rate in (0.3, 0.5, 0.7):
        plan = step_of(THRESHOLD.with_rates(completion=rate), RARE, RARE)
        assert plan.prob_UN[0].view(2, 8).tolist() == [[1.0] + [1 - rate] * 7] * 2
        low = plan.weight_UN[0].view(2, 8)[:, 1:]
        assert set(low.flatten().tolist()) <= {0.0, 1 / (1 - rate)}, "one over the probability, not over what is kept"
        assert int((low > 0).sum()) in (int(14 * (1 - rate)), int(14 * (1 - rate)) + 1), "a fixed size"


def test_ours_draws_in_proportion_to_the_expected_gradient():
    """Tokens 1 and 4 of a mean within completions: |A| / sqrt(n) is 1 : 1/2."""
    plan = step_of(DPPO, [1, 0] * 4, tokens=[1, 4] * 4)
    assert plan.prob_UN[0].tolist() == pytest.approx([2 / 3, 1 / 3] * 4)
    assert len(kept(plan)) == 4


def test_algorithm_1_keeps_the_same_rows_whatever_the_seed_and_weighs_them_as_if_they_were_drawn():
    method = METHODS["dppo_deterministic"]
    plans = [step_of(method, RARE, [0, 0, 0, 2, 0, 0, 0, 0], seed=seed) for seed in range(5)]
    assert all(torch.equal(plan.weight_UN, plans[0].weight_UN) for plan in plans)
    assert {0, 11} <= set(kept(plans[0])) and len(kept(plans[0])) == 9, "2 for certain, and half of 14"
    assert set(plans[0].weight_UN.flatten().tolist()) == {0.0, 1.0, 2.0}
    assert len({tuple(kept(step_of(THRESHOLD, RARE, RARE, seed=seed))) for seed in range(5)}) > 1


def test_the_control_is_a_plain_mean_over_what_is_kept():
    method = METHODS["dppo_unweighted"]
    plan = step_of(method, RARE, RARE)
    assert plan.weight_UN[0][kept(plan)].tolist() == [16 / len(kept(plan))] * len(kept(plan))
    assert torch.equal(plan.prob_UN, step_of(DPPO, RARE, RARE).prob_UN)
    assert method.prompts.weighting is KEPT_MEAN


def test_a_method_is_no_scheme():
    """The wrong twin silently lost DAPO's loss."""
    with refused(ConfigError, "dppo_dapo is a method", "beside gspo", "SCHEMES['dppo']"):
        combined(OBJECTIVES["gspo"], METHODS["dppo_dapo"])


@pytest.mark.parametrize("pruning", ["dppo", "dppo_threshold", "infobatch", "pods"])
@pytest.mark.parametrize("base", ["dr_grpo", "dapo", "gspo"])
def test_a_scheme_changes_what_is_dropped_and_nothing_else(base, pruning):
    method = combined(OBJECTIVES[base], SCHEMES[pruning])
    base, pruning = METHODS["dapo_loss" if base == "dapo" else base], METHODS[pruning]
    assert method.name == f"{pruning.name}_{base.name.removesuffix('_loss')}"
    for part in ("advantages", "token_loss", "normaliser", "fixes", "beta", "kl"):
        assert getattr(method, part) == getattr(base, part)
    for part in ("prompts", "completions", "schedule", "statistics"):
        assert getattr(method, part) is getattr(pruning, part)
    assert set(base.deviations) | set(pruning.deviations) == set(method.deviations)
    assert base.paper in method.paper and pruning.paper in method.paper
    assert relative_error(full_gradient(at_rates(method, 0.0, 0.0)), full_gradient(base)) == 0


SIZE = 64
BLOCK = candidates_of(list(range(SIZE)))
"""Half of it is below the mean."""


def source(method=ROWS_METHOD, size=SIZE, seen=True):
    scores = RecordedScores(np.arange(size, dtype=np.uint64), np.full(size, 10))
    if seen:
        scores.record(torch.arange(size), torch.arange(size).double())
    return RowSource(scores, method, seed=0)


def drawn_prompts(rate):
    return INFOBATCH.with_rates(prompt=rate).prompts.draw(BLOCK, generator(3, Purpose.CHECK))


def drawn_rows(rate):
    method = replace(ROWS_METHOD, rows=ROWS_METHOD.rows.at_rate(rate))
    return source(method).draw(torch.arange(SIZE), step=3, epoch=1)


@pytest.mark.parametrize("drawn", [drawn_prompts, drawn_rows])
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_the_papers_formula(rate, drawn):
    """H_t(z) below the mean: dropped with probability r, else weighted by 1 / (1 - r); above: kept, weight 1."""
    draw, half = drawn(rate), SIZE // 2
    assert draw.keep_N[half:].all() and (draw.weight_N[half:] == 1).all()
    low_N = draw.keep_N[:half]
    assert draw.prob_N[:half].tolist() == pytest.approx([1 - rate] * half) and 0 < low_N.sum() < half
    assert draw.weight_N[:half].tolist() == pytest.approx((low_N / (1 - rate)).tolist())
    if drawn is drawn_prompts:
        assert draw.weight_N.sum() == pytest.approx(SIZE), "a step stands for all its candidates"


def test_infobatch_prunes_in_seven_eighths_of_a_run():
    assert [INFOBATCH.at(done).prompts.rate for done in (0.0, 0.5, 0.874, 0.875, 1.0)] == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert INFOBATCH.at(0.9).prompts.draw(BLOCK, generator(0)).keep_N.all()
    assert not INFOBATCH.biases() and "rate by schedule stop" in INFOBATCH.describe()
    assert INFOBATCH.completions.rate == 0


def kept_together(method):
    """Chance that two of the rows below the mean are both kept: of one draw for an epoch, each in a step of its own."""
    four = BLOCK.take(torch.arange(4))
    return sum(chance for draw, chance in every_way(lambda tape: method.rows.draw(four, tape)) if draw.keep_N[:2].all())


def test_a_step_of_an_epoch_says_nothing_of_the_next_one():
    assert kept_together(ROWS_METHOD) == pytest.approx(0.25)
    twin = replace(ROWS_METHOD, rows=replace(ROWS_METHOD.rows, design=PIVOTAL))
    assert kept_together(twin) == 0, "a draw of a fixed size keeps one of the two"


def test_the_mean_is_the_datasets_and_one_draw_stands_for_an_epoch():
    rows, all_rows = source(size=40), torch.arange(40)
    low = all_rows[:20]  # all below the dataset's mean: of the step's own rows half would be
    first, again = rows.draw(low, step=3, epoch=1), rows.draw(low, step=4, epoch=1)
    assert first.prob_N.tolist() == [0.5] * 20 and torch.equal(first.keep_N, again.keep_N)
    rows.scores.record(low, torch.full((20,), 100.0))
    assert torch.equal(rows.draw(low, step=5, epoch=1).keep_N, first.keep_N), "scores count from the next epoch on"
    assert not torch.equal(rows.draw(low, step=6, epoch=2).prob_N, first.prob_N)
    assert rows.draw(all_rows, step=0, epoch=9, done=0.9).keep_N.all(), "the last eighth is not pruned"
    assert not rows.draw(all_rows, step=0, epoch=10, done=0.5).keep_N.all()
    assert rows.draw(all_rows, step=1, epoch=10, done=0.9).keep_N.all(), "from the middle of an epoch on too"
    assert source(size=40, seen=False).draw(low, step=0).keep_N.all(), "nor the first epoch"


GROUPS = rewards_of([1] * 4, [0] * 3, [0.1] * 4, [0, 0.1, 0.1, 0.1], [1, 1, 1, 0], [1, 0.1], [np.nan] * 3)


def test_by_variance_a_mixture_is_neither_and_by_the_mean_one_of_small_rewards_is_hard():
    assert by_variance(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, NEITHER, NEITHER, NEITHER, NEITHER]
    assert by_mean(GROUPS, 0.0, 1.0).tolist() == [EASY, HARD, HARD, HARD, NEITHER, NEITHER, NEITHER]
    assert (SKIPPING.streak, COMPAT_SKIPPING.streak) == (by_variance, by_mean)
    for group, kind in (([1] + [0] * 15, HARD), ([1] * 49 + [0], EASY)):
        rewards = rewards_of(group)
        assert by_mean(rewards, 0, 1).tolist() == [kind] and by_variance(rewards, 0, 1).tolist() == [NEITHER]


@pytest.mark.parametrize("explore", [0.5, 0.05, 0.95])
def test_keep_probabilities_by_hand(explore):
    wanted = [max(explore**streak, 0.01) for streak in range(9)]
    easy = SKIPPING.chances(torch.arange(9), Exploration(easy=explore, hard=0.3))
    hard = SKIPPING.chances(-torch.arange(9), Exploration(easy=0.3, hard=explore))
    assert easy[:, 0].tolist() == hard[:, 1].tolist() == pytest.approx(wanted, rel=1e-9)
    assert easy[:, 1].tolist() == hard[:, 0].tolist() == [1.0] * 9


def explored(skipping, *groups, epochs=2.0):
    """What is explored of easy and hard prompts after a first step."""
    _, after = skipping.learn(skipping.start(), rewards_of(*groups), epochs=epochs)
    assert skipping.metrics(after) == {"prune/explore_easy": after.easy, "prune/explore_hard": after.hard}
    return after.easy, after.hard


@pytest.mark.parametrize(
    ("easy", "hard", "wanted"),
    [(0, 0, (0.51, 0.51)), (1, 1, (0.49, 0.51)), (0, 2, (0.51, 0.49)), (1, 2, (0.49, 0.49))],
    ids=["few of both", "easy at its target", "hard at its target", "both at their target"],
)
def test_exploration_goes_down_where_the_target_is_reached(easy, hard, wanted):
    """A twelfth may be easy and a sixth hard: a quarter in all."""
    groups = *[[1, 1]] * easy, *[[0, 0]] * hard, *[[0, 1]] * (12 - easy - hard)
    assert explored(SKIPPING, *groups, epochs=1.5) == pytest.approx(wanted)
    assert explored(SKIPPING, *groups, epochs=1.0) == (0.5, 0.5)


def test_in_the_compatible_variant_groups_of_zeros_leave_the_tally():
    outcome_Q, _ = COMPAT_SKIPPING.learn(COMPAT_SKIPPING.start(), rewards_of(*[[0, 0]] * 12), epochs=2)
    assert outcome_Q.tolist() == [HARD] * 12
    cases = (COMPAT_SKIPPING, [0, 0], 0.51), (SKIPPING, [0, 0], 0.49), (COMPAT_SKIPPING, [0.1, 0.1], 0.49)
    for skipping, group, hard in cases:
        assert explored(skipping, *[group] * 12)[1] == pytest.approx(hard)


def test_only_groups_whose_rewards_differ_count():
    groups = rewards_of([0, 1], [1, 1], [0.1] * 3, [1], [np.nan, 1], [np.nan])
    assert mixed(groups).tolist() == [True] + [False] * 5, "of one there is no variance"


@pytest.mark.parametrize(
    ("samples", "prompts", "last"),
    [(0, 384, False), (1200, 331, True), (2000, 64, True)],
    ids=["est 800", "est 331", "est 18"],
)
def test_adaptive_rounds_have_the_sizes_of_greso(samples, prompts, last):
    """2048 samples wanted in groups of 8, usual round 384, three in five groups without variance."""
    collected = Collected(wanted=256, usual=384, counted=samples // 8, rounds=1, last_rolled_out=400, last_counted=160)
    assert ROUNDS.size(collected) == RoundRequest(prompts=prompts, last=last)
