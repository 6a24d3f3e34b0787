"""Advantages against a baseline from history: by hand, with missing rewards, never from a completion's own reward."""

from dataclasses import replace

import pytest
import torch
from arrays import rewards_of
from hypothesis import given
from hypothesis import strategies as st

from dppo.context import NOTHING_KNOWN, Expected, StepContext
from dppo.objective import history_advantages, history_scaled_advantages

NAN = float("nan")
REWARD = st.sampled_from([0.0, 0.5, 1.0, -2.0, NAN])
FUNCTIONS = 2


def known(groups, mean=None, variance=0.2, worth=3.0, weights=(1.0, 1.0)):
    """Rewards of groups, and what history expected of each of them."""
    rewards, shape = rewards_of(*groups, weights=weights), (len(groups), FUNCTIONS)
    if mean is None:
        return rewards, NOTHING_KNOWN
    mean_QF, variance_QF, strength_QF = (torch.full(shape, value).double() for value in (mean, variance, worth))
    return rewards, StepContext(expected=Expected(mean_QF=mean_QF, variance_QF=variance_QF, strength_QF=strength_QF))


def by_hand(groups, mean, worth, weights):
    """One number at a time."""
    found = []
    for group in groups:
        for place, row in enumerate(group):
            advantage = 0.0
            for function, weight in enumerate(weights):
                others = [line[function] for j, line in enumerate(group) if j != place]
                others = [value for value in others if value == value]
                if row[function] != row[function]:
                    continue
                share = len(others) / (len(others) + worth)
                siblings = sum(others) / len(others) if others else 0.0
                advantage += weight * (row[function] - share * siblings - (1 - share) * mean)
            found.append(advantage)
    return torch.tensor(found, dtype=torch.float64)


GROUPS = st.lists(
    st.lists(st.lists(REWARD, min_size=FUNCTIONS, max_size=FUNCTIONS), min_size=1, max_size=4), min_size=1, max_size=3
)


@given(groups=GROUPS, mean=st.sampled_from([0.0, 0.3]), worth=st.sampled_from([0.5, 7.0]))
def test_it_is_the_formula_for_groups_of_any_size_with_missing_rewards(groups, mean, worth):
    weights = [2.0, -0.5]
    got = history_advantages(*known(groups, mean, worth=worth, weights=weights))
    torch.testing.assert_close(got, by_hand(groups, mean, worth, weights))


@given(groups=GROUPS, data=st.data())
def test_a_baseline_never_sees_its_own_reward(groups, data):
    """Move one reward by 10: its advantage moves by 10, whatever else does."""
    group = data.draw(st.integers(0, len(groups) - 1))
    place = data.draw(st.integers(0, len(groups[group]) - 1))
    number = sum(map(len, groups[:group])) + place
    moved = [[list(row) for row in each] for each in groups]
    if moved[group][place][0] != moved[group][place][0]:
        return
    moved[group][place][0] += 10
    for mean in (None, 0.3):
        if mean is None and len(groups[group]) == 1:
            continue  # without history and siblings there is no baseline: the advantage is 0
        before, after = (history_advantages(*known(each, mean)) for each in (groups, moved))
        siblings = [row[0] for j, row in enumerate(groups[group]) if j != place and row[0] == row[0]]
        if mean is not None or siblings:
            assert (after - before)[number].item() == pytest.approx(10)


def test_without_history_it_is_leave_one_out_and_a_group_of_one_has_nothing():
    got = history_advantages(*known([[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0]]]))
    assert got.tolist() == pytest.approx([1.0, -0.5, -0.5, 0.0])
    worthless = history_advantages(*known([[[1.0, 0.0], [0.0, 0.0]]], mean=0.7, worth=0.0))
    assert worthless.tolist() == pytest.approx([1.0, -1.0]), "what is worth nothing has no say"


def test_a_function_that_history_knows_nothing_of_has_its_siblings_alone():
    """The wrong twin mixes in a mean of 0, which nobody expected."""
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
