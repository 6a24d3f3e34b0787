"""Methods of other papers and of their code, against losses written out by hand, and compositions of methods."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_policy import ONES, at_rates, estimate, expectation, gradient, relative_error

from dppo.errors import ConfigError
from dppo.methods import (
    CPPO_TRL,
    CPPO_VERL,
    DAPO_LOSS,
    DPPO,
    DPPO_DAPO,
    DPPO_GSPO,
    DPPO_THRESHOLD,
    DPPO_THRESHOLD_GSPO,
    GRPO,
    GSPO,
    INFOBATCH,
    METHODS,
    PODS,
    on_top_of,
)
from dppo.objective import (
    ADVANTAGE_RULES,
    CENTRED,
    GROUP_SCALED,
    emphasised,
    group_advantages,
    kept_rows,
    powered,
    weighted_sum,
    whole_groups,
)
from dppo.pruning import PIVOTAL, fade, stop
from dppo.rng import Purpose, generator
from dppo.types import Candidates, Completions

TOKENS = torch.tensor([3, 9, 1, 5, 4, 2, 8, 6] * 3)
REWARD_PG = torch.tensor(
    [[1.0, 0, 0, 1, 0, 0, 0, 0], [0.0] * 8, [1.0, 0, 1, 1, 0, 1, 0, 0.5]], dtype=torch.float64
)  # fmt: skip


def trained(method, reward_PG=REWARD_PG, process_N=None):
    """What a method trains on: weights and advantages, (N,) each, rows without a gradient at 0."""
    advantage_PG = method.advantages(reward_PG)
    rows = Completions(
        advantage_N=advantage_PG.flatten(),
        tokens_N=TOKENS[: advantage_PG.numel()],
        group_N=torch.arange(advantage_PG.numel()) // reward_PG.shape[1],
        live_N=method.live(advantage_PG.flatten()),
        process_N=process_N,
    )
    draw = method.completions.draw_completions(rows, generator(0, Purpose.CHECK))
    advantage_N = method.trained_advantages(reward_PG, advantage_PG, draw.keep_N.view(reward_PG.shape)).flatten()
    return draw.weight_N, advantage_N


def loss(method, weight_N, advantage_N):
    """The method's loss at ratio 1 of completions whose tokens all have log-probability 0: minus the advantages."""
    mask = torch.arange(int(TOKENS.max())) < TOKENS[: len(weight_N), None]
    logp = torch.zeros(mask.shape, dtype=torch.float64)
    token_loss = method.loss(logp, logp, advantage_N, mask, logp)
    total = weighted_sum(token_loss, mask, weight_N, per_sequence=method.normaliser.per_sequence)
    return total.item() / method.normaliser.denominator(len(weight_N), float(mask.sum()), mask.shape[1])


# CPPO's two codes.


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.3])
@pytest.mark.parametrize("processes", [1, 3])
def test_cppo_as_in_its_code_for_trl(rate, processes):
    """Each process drops int(N * P) rows of its own and takes a mean over the tokens left."""
    method = CPPO_TRL.with_rates(completion=rate)
    got = loss(method, *trained(method, process_N=torch.arange(24) // (24 // processes)))
    advantage_N, size = group_advantages(REWARD_PG).flatten(), 24 // processes
    dropped = {0.5: size // 2, 0.9: {24: 21, 8: 7}[size], 0.3: {24: 7, 8: 2}[size]}[rate]
    means = []
    for first in range(0, 24, size):
        rows = sorted(range(first, first + size), key=lambda i: (-advantage_N[i].abs().item(), i))[: size - dropped]
        means.append(-(advantage_N[rows] * TOKENS[rows]).sum().item() / TOKENS[rows].sum().item())
    assert got == pytest.approx(sum(means) / processes, abs=1e-12)


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.3])
def test_cppo_as_in_its_code_for_verl(rate):
    """Over the whole step int(N * (1 - P)) rows are kept; their sum of means is divided by all N: (1 - P) smaller."""
    method = CPPO_VERL.with_rates(completion=rate)
    got = loss(method, *trained(method))
    advantage_N = group_advantages(REWARD_PG).flatten()
    keeps = {0.5: 12, 0.9: 2, 0.3: 16}[rate]
    rows = sorted(range(24), key=lambda i: (-advantage_N[i].abs().item(), i))[:keeps]
    assert got == pytest.approx(-advantage_N[rows].sum().item() / 24, abs=1e-12)


def test_a_batch_without_signal_trains_on_nothing():
    for name in ("cppo_trl", "cppo_verl", "pods"):
        weight_N, advantage_N = trained(METHODS[name], torch.full((2, 8), 0.3, dtype=torch.float64))
        assert (advantage_N == 0).all() and not weight_N.isnan().any()


# PODS.


def test_pods_takes_both_ends_of_each_group_and_its_own_statistics():
    weight_N, advantage_N = trained(PODS)
    kept = (weight_N > 0).view(3, 8)
    assert kept.nonzero()[:, 1].view(3, 4).tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 4]]
    advantage_PG = advantage_N.view(3, 8)
    torch.testing.assert_close(advantage_PG[0, [0, 1, 2, 3]], torch.tensor([1.0, -1, -1, 1]).double() * 0.865875,
                               atol=1e-6, rtol=0)  # fmt: skip
    assert advantage_PG[0].sum().abs() < 1e-12, "unlike top k, whose kept advantages sum to 2.16"
    assert (advantage_PG[1] == 0).all() and (advantage_PG[:, 5:] == 0).all()
    assert set(weight_N.tolist()) == {0.0, 2.0}
    rewards = REWARD_PG[:, [0, 1, 2, 3]], REWARD_PG[2, [0, 1, 2, 4]]
    by_hand = [-group_advantages(rewards[0])[:2].sum(), -group_advantages(rewards[1][None]).sum()]
    assert loss(PODS, weight_N, advantage_N) == pytest.approx(sum(by_hand).item() / 12, abs=1e-12)


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_a_completion_at_the_mean_stays_without_a_gradient(rate):
    """It is kept only where all others are, or where the ends balance around it: the mean stays where it was."""
    reward_PG = torch.tensor([[0.0, 2.0, 2.0, 5.0, 1.0, 2.0, 3.0, 1.0]], dtype=torch.float64)
    weight_N, advantage_N = trained(PODS.with_rates(completion=rate), reward_PG)
    middling = reward_PG[0] == 2
    assert (weight_N > 0)[middling].any() == (rate == 0.25)
    assert (advantage_N[middling] == 0).all() and (advantage_N[~middling & (weight_N > 0)] != 0).all()


def test_statistics_of_whole_groups_leave_advantages_alone():
    keep = torch.tensor([[True, False, True]])
    reward, advantage = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[7.0, 8.0, 9.0]])
    assert whole_groups(CENTRED, reward, advantage, keep) is advantage
    assert kept_rows(CENTRED, reward, advantage, keep).tolist() == [[-1.5, 0, 1.5]]
    assert kept_rows(CENTRED, reward, advantage, ~keep).tolist() == [[0, 0, 0]]
    missing = torch.tensor([[1.0, torch.nan, 4.0]])
    assert kept_rows(CENTRED, missing, advantage, keep | True).tolist() == [[-1.5, 0, 1.5]]


def test_statistics_of_kept_rows_are_biased_under_any_draw():
    method = at_rates(DPPO, 0.0, 0.5, statistics=kept_rows)
    assert "kept_rows" in method.selection_bias[0]
    assert relative_error(expectation(method), gradient(method, ONES)) > 1e-2
    assert at_rates(method, 0.5, 0.0).unbiased, "with no completion pruned they are those of the whole group"
    assert relative_error(expectation(at_rates(method, 0.5, 0.0)), gradient(method, ONES)) < 1e-12


# InfoBatch, and schedules for every pruning.


def block(size=64):
    signal = torch.arange(size, dtype=torch.float64)
    return Candidates(
        row_P=torch.arange(size),
        signal_P=signal,
        tokens_P=torch.ones(size, dtype=torch.float64),
        seen_P=torch.ones(size, dtype=torch.bool),
    )


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_infobatch_drops_below_the_mean_and_weighs_by_one_over_what_is_kept(rate):
    draw = INFOBATCH.with_rates(prompt=rate).prompts.draw_prompts(block(), generator(3, Purpose.CHECK))
    assert draw.keep_N[32:].all() and (draw.weight_N[32:] == 1).all()
    assert draw.keep_N[:32].sum() == 32 * (1 - rate)
    torch.testing.assert_close(
        draw.weight_N[:32][draw.keep_N[:32]], torch.full((int(32 * (1 - rate)),), 1 / (1 - rate)).double()
    )
    assert draw.weight_N.sum() == pytest.approx(64), "a step stands for all its candidates"


def test_infobatch_prunes_in_seven_eighths_of_a_run():
    assert [INFOBATCH.at(done).prompts.rate for done in (0.0, 0.5, 0.874, 0.875, 1.0)] == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert INFOBATCH.at(0.9).prompts.draw_prompts(block(), generator(0)).keep_N.all()
    assert INFOBATCH.unbiased and "stop" in INFOBATCH.describe()


def test_any_pruning_can_fade():
    fading = partial(fade, until=0.5)
    method = DPPO.with_rates(prompt=0.4)
    method = replace(
        method,
        prompts=replace(method.prompts, schedule=fading),
        completions=replace(method.completions, schedule=partial(stop, until=0.25)),
    )
    rates = [(m.prompts.rate, m.completions.rate) for m in (method.at(done) for done in (0, 0.25, 0.5, 0.75, 1))]
    assert rates == [(0.4, 0.5), (0.4, 0.0), (0.4, 0.0), (0.2, 0.0), (0.0, 0.0)]
    assert method.at(0.75).at(0.75).prompts.rate == 0.2, "applied once"
    assert DPPO.at(0.9) is DPPO
    assert method.schedule_name == "fade(until=0.5), stop(until=0.25)" and DPPO.schedule_name == ""


def test_the_gradient_is_unbiased_at_every_point_of_a_schedule():
    method = at_rates(DPPO, 0.5, 0.5, beta=0.2)
    method = replace(method, prompts=replace(method.prompts, schedule=fade))
    for done in (0.0, 0.9, 0.95, 1.0):
        assert relative_error(expectation(method.at(done)), gradient(method, ONES)) < 1e-12


# DPPO on top of other objectives.


@pytest.mark.parametrize("pruning", [DPPO, DPPO_THRESHOLD, INFOBATCH, PODS], ids=lambda m: m.name)
@pytest.mark.parametrize("base", [GRPO, DAPO_LOSS, GSPO], ids=lambda m: m.name)
def test_on_top_of_changes_what_is_dropped_and_nothing_else(base, pruning):
    method = on_top_of(base, pruning)
    assert method.name == f"{pruning.name}_{base.name.removesuffix('_loss')}"
    for part in ("advantages", "token_loss", "normaliser", "beta"):
        assert getattr(method, part) is getattr(base, part)
    assert (method.prompts, method.statistics) == (pruning.prompts, pruning.statistics)
    assert replace(method.completions, score=None) == replace(pruning.completions, score=None)
    assert set(base.deviations) | set(pruning.deviations) == set(method.deviations)
    unpruned = at_rates(method, 0.0, 0.0)
    assert relative_error(gradient(unpruned, ONES), gradient(base, ONES)) == 0
    assert base.paper in method.paper and pruning.paper in method.paper


def test_composed_presets_keep_the_base_and_its_score():
    assert (DPPO_DAPO.name, DPPO_GSPO.name) == ("dppo_dapo", "dppo_gspo")
    assert DPPO_DAPO.score_name == "advantage with length" and DPPO_GSPO.score_name == "advantage with length per token"
    assert DPPO_THRESHOLD_GSPO.score_name == "absolute advantage"
    assert DPPO_DAPO.unbiased and not DPPO_DAPO.with_rates(prompt=0.3).unbiased
    assert DPPO_GSPO.with_rates(prompt=0.3).unbiased


# The named advantage transform.


def test_powered_advantages():
    advantage = torch.tensor([-2.0, -0.5, 0.0, 3.0])
    assert powered(advantage, power=1.0).tolist() == [-4.0, -0.25, 0.0, 9.0]
    assert powered(advantage, power=-0.5).tolist() == pytest.approx([-(2**0.5), -(0.5**0.5), 0, 3**0.5])
    assert powered(advantage, power=0.0).tolist() == advantage.tolist()
    for power in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="must be finite and > -1"):
            emphasised(GROUP_SCALED, power)


def test_a_power_stresses_the_rare_outcome():
    """1 right of 8: its advantage is 7 times the others', and 49 times with power 1, so they no longer sum to 0."""
    rule = emphasised(GROUP_SCALED, 1.0)
    advantage = rule(REWARD_PG.new_tensor([[1, 0, 0, 0, 0, 0, 0, 0]]))[0]
    assert (advantage[0] / advantage[1]).item() == pytest.approx(-49)
    assert advantage[0].item() == pytest.approx(2.474174**2, rel=1e-6)
    assert rule.name == "group, A * abs(A)^1" and emphasised(GROUP_SCALED, 0.0) is GROUP_SCALED
    assert advantage.sum() > 5


@pytest.mark.parametrize("power", [-0.5, 0.5, 1.0])
@pytest.mark.parametrize("name", ADVANTAGE_RULES)
@pytest.mark.parametrize("level", [(0.0, 0.5), (0.5, 0.5)])
def test_pruning_the_emphasised_objective_is_as_exact_as_pruning_the_plain_one(level, name, power):
    rule = ADVANTAGE_RULES[name]
    method = at_rates(DPPO, *level, advantages=emphasised(rule, power), beta=0.2)
    error = relative_error(expectation(method), gradient(method, ONES))
    assert method.unbiased == at_rates(DPPO, *level, advantages=rule).unbiased
    assert error < 1e-12 if method.unbiased else error > 1e-3
    assert relative_error(gradient(method, ONES), gradient(replace(method, advantages=rule), ONES)) > 1e-2


def test_pruning_the_plain_objective_is_not_pruning_the_emphasised_one():
    """The wrong twin: the transform after the draw, on weighted advantages, is another number."""
    method = at_rates(DPPO, 0.0, 0.5, advantages=emphasised(GROUP_SCALED, 1.0))
    plain = replace(method, advantages=GROUP_SCALED)

    def late(selection):
        advantage_N = powered(selection.advantage_N * selection.weight_N, power=1.0)
        return gradient(plain, selection.keep_N.double(), advantage_N=advantage_N)

    assert relative_error(expectation(plain, late), gradient(method, ONES)) > 1e-2
    assert relative_error(expectation(plain, lambda s: estimate(plain, s)), gradient(plain, ONES)) < 1e-12


def test_presets_that_prune_at_random_use_the_fixed_size_draw():
    assert INFOBATCH.prompts.design is PIVOTAL and INFOBATCH.completions.rate == 0
