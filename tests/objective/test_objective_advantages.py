"""Advantages: equality with TRL and, against a baseline from history, with the formula; which rules see what."""

from dataclasses import replace

import pytest
import torch
from arrays import mean as mean_of
from arrays import present, rewards_of, spread, tensor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.context import NOTHING_KNOWN, Expected, StepContext
from dppo.errors import ConfigError
from dppo.objective import BATCH_SCALED, CENTRED, GROUP_SCALED, emphasised, group_advantages, powered
from dppo.objective.advantages import history_advantages, history_scaled_advantages
from dppo.types import Rewards

NAN = float("nan")


def trl_advantages(lists, weights, scale):
    """TRL 1.16's arithmetic, one number at a time: weighted nansum over functions, Bessel, eps 1e-4, NaN to 0."""

    def total(row):
        given = [w * r for w, r in zip(weights, row, strict=True) if r == r]
        return sum(given) if given else NAN

    totals = [[total(row) for row in group] for group in lists]
    batch, out = spread([v for group in totals for v in group]), []
    for group in totals:
        below = {"group": spread(group), "batch": batch, "none": None}[scale]
        centred = [v - mean_of(group) for v in group]
        out += [v if below is None else v / (below + 1e-4) for v in centred]
    return tensor([0.0 if v != v else v for v in out])


REWARD = st.sampled_from([0.0, 0.1, 0.5, 1.0, -2.0, NAN])
GROUPS = st.lists(st.lists(st.lists(REWARD, min_size=2, max_size=2), min_size=1, max_size=5), min_size=1, max_size=5)
"""Rewards of groups by two functions."""


@given(
    lists=GROUPS,
    weights=st.sampled_from([[1.0, 1.0], [1.0, 0.25], [0.0, 3.0]]),
    scale=st.sampled_from(["group", "batch", "none"]),
)
def test_equals_trl_on_groups_of_any_sizes_with_several_functions_whose_rewards_may_be_missing(lists, weights, scale):
    got = group_advantages(rewards_of(*lists, weights=weights), scale=scale)
    torch.testing.assert_close(got, trl_advantages(lists, weights, scale), rtol=1e-9, atol=1e-9)
    assert got.dtype == torch.float64


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.1 + 0.2, 1 / 3, 1e6 / 7, -0.7, 0.0, 1e-30])
def test_equal_rewards_give_exactly_zero(value, dtype, scale):
    for size in range(1, 18):
        reward_PG = torch.full((1, size), value, dtype=dtype)
        both = Rewards.of_groups(torch.cat([reward_PG, torch.arange(size, dtype=dtype)[None]]))
        assert (group_advantages(both, scale=scale)[:size] == 0).all()


def test_without_the_check_for_equal_rewards_rounding_would_become_an_advantage():
    """Weighted rewards of two functions: their totals are 0.3 by two sums that round differently."""
    rewards = rewards_of([[0.1, 0.2], [0.2, 0.1], [0.3, 0.0]])
    total = rewards.total_N
    assert ((total - total.mean()) / (total.std() + 1e-4) != 0).any()
    assert (group_advantages(rewards) == 0).all()
    assert (group_advantages(rewards_of([0.3 + 1e-12, 0.3, 0.3, 0.3])) != 0).all(), "a real difference is one"


def test_group_rules_do_not_see_other_groups_and_the_batch_rule_says_that_it_does():
    group = [2.0, 1.0, 0.0, 3.0]
    alone, beside = rewards_of(group), rewards_of(group, [9.0, 0.0, 0.0])
    for rule in (GROUP_SCALED, CENTRED):
        assert torch.equal(rule(alone, NOTHING_KNOWN), rule(beside, NOTHING_KNOWN)[:4])
        assert rule.prompt_exact and rule.reason == ""
    assert not torch.allclose(BATCH_SCALED(alone, NOTHING_KNOWN), BATCH_SCALED(beside, NOTHING_KNOWN)[:4], rtol=1e-2)
    assert not BATCH_SCALED.prompt_exact and "rolled-out" in BATCH_SCALED.reason


def test_a_power_stresses_the_rare_outcome():
    """1 right of 8: its advantage is 7 times the others', and 49 times with power 1, so they no longer sum to 0."""
    signed = torch.tensor([-2.0, -0.5, 0.0, 3.0])
    for power, expected in ((1.0, [-4, -0.25, 0, 9]), (-0.5, [-(2**0.5), -(0.5**0.5), 0, 3**0.5])):
        assert powered(signed, power=power).tolist() == pytest.approx(expected)
    for power in (-1.0, NAN, float("inf")):
        with refused(ConfigError, "power=", "(-1, inf)"):
            emphasised(GROUP_SCALED, power)
    rule = emphasised(GROUP_SCALED, 1.0)
    advantage = rule(rewards_of([1, 0, 0, 0, 0, 0, 0, 0]), NOTHING_KNOWN)
    assert (advantage[0] / advantage[1]).item() == pytest.approx(-49)
    assert advantage[0].item() == pytest.approx(2.474174**2, rel=1e-6)
    assert advantage.sum() > 5
    assert rule.name == "group, A * abs(A)^1" and emphasised(GROUP_SCALED, 0.0) is GROUP_SCALED
    assert emphasised(BATCH_SCALED, 1.0).reason == BATCH_SCALED.reason, "it is as exact as what it is made of"


# Against a baseline from history.


def known(groups, mean=None, variance=0.2, worth=3.0, weights=(1.0, 1.0)):
    """Rewards of groups by two functions, and what history expected of each of them."""
    rewards, shape = rewards_of(*groups, weights=weights), (len(groups), 2)
    if mean is None:
        return rewards, NOTHING_KNOWN
    mean_QF, variance_QF, strength_QF = (torch.full(shape, value).double() for value in (mean, variance, worth))
    return rewards, StepContext(expected=Expected(mean_QF=mean_QF, variance_QF=variance_QF, strength_QF=strength_QF))


def by_hand(groups, mean, worth, weights):
    """One number at a time; the baseline is that of the other completions and of history alone."""
    found = []
    for group in groups:
        for place, row in enumerate(group):
            advantage = 0.0
            for function, weight in enumerate(weights):
                others = present([line[function] for j, line in enumerate(group) if j != place])
                if row[function] != row[function] or not (others or mean is not None):
                    continue
                share = 1.0 if mean is None else len(others) / (len(others) + worth)
                baseline = share * mean_of(others or [0.0]) + (1 - share) * (mean or 0.0)
                advantage += weight * (row[function] - baseline)
            found.append(advantage)
    return tensor(found)


@given(groups=GROUPS, mean=st.sampled_from([None, 0.0, 0.3]), worth=st.sampled_from([0.5, 7.0]))
def test_it_is_the_formula_for_groups_of_any_size_with_missing_rewards(groups, mean, worth):
    weights = [2.0, -0.5]
    got = history_advantages(*known(groups, mean, worth=worth, weights=weights))
    torch.testing.assert_close(got, by_hand(groups, mean, worth, weights))


def test_without_history_it_is_leave_one_out_and_a_group_of_one_has_nothing():
    got = history_advantages(*known([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0]]]))
    assert got.tolist() == pytest.approx([1.0, -0.5, -0.5, 0.0])
    worthless = history_advantages(*known([[[1.0, 0.0], [0.0, 0.0]]], mean=0.7, worth=0.0))
    assert worthless.tolist() == pytest.approx([1.0, -1.0]), "what is worth nothing has no say"


def test_a_function_that_history_knows_nothing_of_has_its_siblings_alone():
    """The wrong twin mixes in a mean of 0, which no history gave."""
    rewards, context = known([[[1.0, 5.0]] * 4, [[1.0, 5.0]]], mean=0.0)
    context.expected.strength_QF[:, 1] = 0.0
    advantage_N, first_N = (
        history_advantages(replace(rewards, weight_F=torch.tensor(weights)), context)
        for weights in ((1.0, 1.0), (1.0, 0.0))
    )
    assert first_N.abs().min() > 0.1 and torch.equal(advantage_N, first_N)


def test_the_deviation_is_that_of_history():
    plain, scaled = (
        rule(*known([[[1.0, 0.0], [0.0, 1.0]]], 0.5, variance=0.16, weights=(1.0, 2.0)))
        for rule in (history_advantages, history_scaled_advantages)
    )
    torch.testing.assert_close(scaled, plain / ((0.16 + 4 * 0.16) ** 0.5 + 0.1))
