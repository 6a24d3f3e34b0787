"""Groups in flat arrays, against dictionaries of plain Python; and the record of rewards that is made of them."""

import math

import pytest
import torch
from arrays import tensor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import RewardError, ShapeError
from dppo.groups import each_group, equal_within_groups, group_count, group_sizes, groups_by_size
from dppo.objective import group_advantages
from dppo.types import Rewards

NAN = float("nan")
VALUES = st.sampled_from([0.0, 0.1, 0.1 + 0.2, 0.3, 1.0, -2.0, NAN])


@st.composite
def grouped(draw, value=VALUES):
    """Values and the number of each one's group: of any sizes, lying in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    number = draw(st.permutations([group for group, size in enumerate(sizes) for _ in range(size)]))
    return draw(st.lists(value, min_size=len(number), max_size=len(number))), number


def members(values, number):
    """{group: its values, in order}, in plain Python."""
    found = {group: [] for group in sorted(set(number))}
    for value, group in zip(values, number, strict=True):
        found[group].append(value)
    return found


@given(grouped())
def test_counts_sizes_and_members_are_those_of_a_dictionary(case):
    values, number = case
    group_N, wanted = torch.tensor(number), members(range(len(values)), number)
    assert group_count(group_N) == len(wanted)
    assert group_sizes(group_N).tolist() == [len(places) for places in wanted.values()]
    found = {}
    for group_Q, row_QG in groups_by_size(group_N):
        assert group_Q.tolist() == sorted(group_Q.tolist())
        found |= dict(zip(group_Q.tolist(), row_QG.tolist(), strict=True))
    assert found == wanted, "members keep their order"
    assert len(list(groups_by_size(group_N))) == len({len(places) for places in wanted.values()}), "one matrix per size"


def test_no_members_are_no_groups():
    none = torch.zeros(0, dtype=torch.int64)
    assert group_count(none) == 0 and list(groups_by_size(none)) == [] and group_sizes(none).shape == (0,)
    found = each_group(lambda v: (v > 0).any(1), none, tensor([]))
    assert found.shape == (0,) and found.dtype == torch.bool, "what it would be for any others"


def test_a_group_among_hundreds_of_any_size_gives_the_bits_it_gives_alone():
    reward_PG = torch.randn(500, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reward_N = torch.cat([tensor([0.1] * 7 + [0.3] * 4), reward_PG.flatten()])
    group_N = torch.cat([torch.zeros(11, dtype=torch.int64), 1 + torch.arange(500).repeat_interleave(37)])
    together = group_advantages(Rewards(reward_NF=reward_N[:, None], group_N=group_N))[11:].view(500, 37)
    for place in range(0, 500, 50):
        alone = group_advantages(Rewards.of_groups(reward_PG[place : place + 1]))
        assert torch.equal(together[place], alone)
    one_by_one = torch.stack(list(reward_PG.unbind(1))).cumsum(0)[-1]
    assert not torch.equal(reward_PG.sum(1), one_by_one), "a sum in another order has other bits"


@given(grouped())
def test_a_group_has_zero_variance_if_its_rewards_are_equal_up_to_rounding(case):
    values, number = case
    zero_variance_Q = equal_within_groups(torch.tensor(number), tensor(values), eps=2**-52)

    def equal(own):
        own = [value for value in own if value == value]
        return not own or max(own) - min(own) <= 4 * 2**-52 * max(map(abs, own))

    assert zero_variance_Q.tolist() == [equal(own) for own in members(values, number).values()]


def test_where_terms_cancel_rounding_is_that_of_the_terms():
    """0.1 + 0.2 - 0.3 is 5.6e-17, and 0.3 + 0.0 - 0.3 is 0: one total, rounded twice."""
    reward_NF = tensor([[0.1, 0.2, 0.3], [0.3, 0.0, 0.3]])
    rewards = Rewards(reward_NF=reward_NF, group_N=torch.tensor([0, 0]), weight_F=tensor([1, 1, -1]))
    assert rewards.total_N[0] != rewards.total_N[1] and rewards.zero_variance_Q.tolist() == [True]
    assert group_advantages(rewards).tolist() == [0.0, 0.0]
    assert not equal_within_groups(rewards.group_N, rewards.total_N, eps=2**-52), "by the size of the totals it is not"


@given(grouped(), st.lists(VALUES, min_size=25, max_size=25), st.sampled_from([None, (1.0, 1.0), (2.0, -0.5)]))
def test_totals_are_weighted_sums_over_the_functions_that_gave_a_reward(case, more, weights):
    first, number = case
    reward_NF = tensor([first, more[: len(first)]]).T
    weight_F = None if weights is None else tensor(weights)
    found = Rewards(reward_NF=reward_NF, group_N=torch.tensor(number), weight_F=weight_F)
    for row, total in zip(reward_NF.tolist(), found.total_N.tolist(), strict=True):
        given = [w * r for w, r in zip(weights or (1.0, 1.0), row, strict=True) if r == r]
        assert total == pytest.approx(sum(given), abs=1e-12) if given else math.isnan(total)
    assert len(found) == len(number) and found.groups == len(set(number))


def test_rewards_of_single_precision_have_zero_variance_by_its_roundings():
    """A mean of equal float32 rewards is off by a rounding of float32, far above those of float64."""
    step = 2**-23
    for dtype, equal in ((torch.float32, True), (torch.float64, False)):
        reward_PG = torch.tensor([[1.0, 1.0 + 2 * step]], dtype=dtype)
        assert Rewards.of_groups(reward_PG).zero_variance_Q.tolist() == [equal]
        assert (group_advantages(Rewards.of_groups(reward_PG)) == 0).all().item() == equal


@given(grouped(), st.data())
def test_taking_completions_renumbers_groups_and_taking_rewards_away_does_not(case, data):
    values, number = case
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    rewards = Rewards(reward_NF=tensor(values)[:, None], group_N=torch.tensor(number), weight_F=tensor([2.0]))
    taken, only = rewards.take(torch.tensor(keep)), rewards.only(torch.tensor(keep))
    left = [group for group, kept in zip(number, keep, strict=True) if kept]
    order = sorted(set(left))
    assert taken.group_N.tolist() == [order.index(group) for group in left]
    assert taken.weight_F is rewards.weight_F and only.weight_F is rewards.weight_F
    torch.testing.assert_close(taken.total_N, rewards.total_N[torch.tensor(keep)], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(only.group_N, rewards.group_N)
    assert only.total_N.isnan().tolist() == [not k or v != v for k, v in zip(keep, values, strict=True)]


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"reward_NF": tensor([1, 0])}, ShapeError, ("(2,)", "reward_N.double()[:, None]")),
        ({"reward_NF": torch.zeros(2, 1, dtype=torch.int64)}, ShapeError, ("torch.int64",)),
        ({"group_N": torch.tensor([0])}, ShapeError, ("group_N", "(1,)")),
        ({"group_N": torch.tensor([0, 2])}, ShapeError, ("without a gap",)),
        ({"weight_F": tensor([1, 2])}, ShapeError, ("weight_F", "(2,)")),
        ({"reward_NF": tensor([[math.inf], [1]])}, RewardError, ("float('nan')",)),
    ],
)
def test_rewards_that_do_not_belong_together_are_refused(changes, error, named):
    with refused(error, *named):
        Rewards(**({"reward_NF": tensor([[1], [0]]), "group_N": torch.tensor([0, 0])} | changes))
