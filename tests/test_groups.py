"""Groups in flat arrays, against dictionaries of plain Python; and the record of rewards that is made of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.errors import RewardError, ShapeError
from dppo.groups import ROUNDINGS, each_group, equal_within_groups, group_count, group_sizes, groups_by_size
from dppo.objective import group_advantages
from dppo.types import Rewards

NAN = float("nan")
VALUES = st.sampled_from([0.0, 0.1, 0.1 + 0.2, 0.3, 1.0, -2.0, NAN])


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


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


# groups.py.


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


@given(grouped(st.integers(-50, 50)))
def test_what_is_computed_per_group_is_what_python_computes(case):
    """An order-dependent reduction of two values at once."""
    values, number = case

    def reduce(value_QG, place_QG):
        return (value_QG * torch.arange(1, value_QG.shape[1] + 1)).sum(1) + place_QG[:, -1]

    found = each_group(reduce, torch.tensor(number), torch.tensor(values), torch.arange(len(values)))
    wanted = [
        sum((place + 1) * value for place, value in enumerate(own)) + last[-1]
        for own, last in zip(
            members(values, number).values(), members(range(len(values)), number).values(), strict=True
        )
    ]
    assert found.tolist() == wanted


def test_the_result_has_the_type_of_the_reduction():
    group_N, value_N = torch.tensor([1, 0, 1]), tensor([1, 2, 3])
    assert each_group(lambda v: (v > 1).all(1), group_N, value_N).tolist() == [True, False]
    assert each_group(lambda v: v.float().mean(1), group_N, value_N).dtype == torch.float32


def test_no_members_are_no_groups():
    none = torch.zeros(0, dtype=torch.int64)
    assert group_count(none) == 0 and list(groups_by_size(none)) == [] and group_sizes(none).shape == (0,)
    for reduce, dtype in ((lambda v: v.sum(1), torch.float64), (lambda v: (v > 0).any(1), torch.bool)):
        found = each_group(reduce, none, tensor([]))
        assert found.shape == (0,) and found.dtype == dtype, "what it would be for any others"
    assert equal_within_groups(none, tensor([]), eps=1e-16).shape == (0,)


@given(
    own=st.lists(st.floats(-3, 3), min_size=2, max_size=9),
    others=st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=9), max_size=4),
    first=st.booleans(),
)
def test_a_group_gives_the_same_bits_whatever_the_sizes_of_the_others(own, others, first):
    """A sum over padded lines, or over an index, would depend on how the others are cut up."""
    groups = [own, *others] if first else [*others, own]
    place = groups.index(own)
    reward = Rewards(
        reward_NF=tensor([value for group in groups for value in group])[:, None],
        group_N=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
    )
    alone, beside = group_advantages(Rewards.of_groups(tensor([own]))), group_advantages(reward)
    assert torch.equal(beside[reward.group_N == place], alone)
    assert torch.equal(each_group(lambda v: v.square().sum(1).sqrt(), reward.group_N, reward.total_N)[place],
                       tensor(own).square()[None].sum(1).sqrt()[0])  # fmt: skip


def test_a_group_among_hundreds_of_its_size_gives_the_bits_it_gives_alone():
    reward_PG = torch.randn(500, 37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = group_advantages(Rewards.of_groups(reward_PG)).view(500, 37)
    for place in range(0, 500, 50):
        alone = group_advantages(Rewards.of_groups(reward_PG[place : place + 1]))
        assert torch.equal(together[place], alone)
    one_by_one = torch.stack(list(reward_PG.unbind(1))).cumsum(0)[-1]
    assert not torch.equal(reward_PG.sum(1), one_by_one), "a sum in another order has other bits"


@given(grouped())
def test_a_group_is_flat_where_its_rewards_are_equal_up_to_rounding(case):
    values, number = case
    flat_Q = equal_within_groups(torch.tensor(number), tensor(values), eps=2**-52)

    def equal(own):
        own = [value for value in own if value == value]
        return not own or max(own) - min(own) <= 4 * 2**-52 * max(map(abs, own))

    assert flat_Q.tolist() == [equal(own) for own in members(values, number).values()]


def test_the_rounding_allowed_is_that_of_the_largest_reward():
    step = 2**-52
    for roundings, flat in ((ROUNDINGS, True), (ROUNDINGS + 1, False)):
        group = tensor([1.0, 1.0 - roundings * step])
        assert equal_within_groups(torch.zeros(2, dtype=torch.int64), group, eps=step).tolist() == [flat]
        assert equal_within_groups(torch.zeros(2, dtype=torch.int64), -1024 * group, eps=step).tolist() == [flat]


def test_where_terms_cancel_rounding_is_that_of_the_terms():
    """0.1 + 0.2 - 0.3 is 5.6e-17, and 0.3 + 0.0 - 0.3 is 0: one total, rounded twice."""
    reward_NF = tensor([[0.1, 0.2, 0.3], [0.3, 0.0, 0.3]])
    rewards = Rewards(reward_NF=reward_NF, group_N=torch.tensor([0, 0]), weight_F=tensor([1, 1, -1]))
    assert rewards.total_N[0] != rewards.total_N[1] and rewards.flat_Q.tolist() == [True]
    assert group_advantages(rewards).tolist() == [0.0, 0.0]
    assert not equal_within_groups(rewards.group_N, rewards.total_N, eps=2**-52), "by the size of the totals it is not"


# Rewards.


@given(grouped(), st.lists(VALUES, min_size=25, max_size=25), st.sampled_from([None, (1.0, 1.0), (2.0, -0.5)]))
def test_totals_are_weighted_sums_over_the_functions_that_gave_a_reward(case, more, weights):
    first, number = case
    reward_NF = tensor([first, more[: len(first)]]).T
    found = Rewards(
        reward_NF=reward_NF, group_N=torch.tensor(number), weight_F=None if weights is None else tensor(weights)
    )
    for row, total in zip(reward_NF.tolist(), found.total_N.tolist(), strict=True):
        given = [w * r for w, r in zip(weights or (1.0, 1.0), row, strict=True) if r == r]
        assert total == pytest.approx(sum(given), abs=1e-12) if given else math.isnan(total)
    assert len(found) == len(number) and found.groups == len(set(number))


def test_rewards_of_single_precision_are_flat_by_its_roundings():
    """A mean of equal float32 rewards is off by a rounding of float32, far above those of float64."""
    step = 2**-23
    for dtype, flat in ((torch.float32, True), (torch.float64, False)):
        reward_PG = torch.tensor([[1.0, 1.0 + 2 * step]], dtype=dtype)
        assert Rewards.of_groups(reward_PG).flat_Q.tolist() == [flat]
        assert (group_advantages(Rewards.of_groups(reward_PG)) == 0).all().item() == flat


def test_whole_numbers_and_booleans_are_rewards():
    assert Rewards.of_groups(torch.tensor([[1, 0]])).reward_NF.tolist() == [[1.0], [0.0]]
    assert Rewards.of_groups(torch.tensor([[True, False]])).total_N.dtype == torch.float64


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


def test_a_group_without_its_dropped_completions_is_the_group_of_those_kept():
    """``only`` is what statistics of kept completions are made of: dropped ones count in no mean."""
    rewards, keep_N = Rewards.of_groups(tensor([[1, 2, 4], [0, 5, 9]])), torch.tensor([True, False, True] * 2)
    got = group_advantages(rewards.only(keep_N))
    assert torch.equal(got[keep_N], group_advantages(rewards.take(keep_N)))
    assert (got[~keep_N] == 0).all()


BAD = {
    "one dimension": ({"reward_NF": tensor([1, 0])}, ShapeError, r"shape \(2,\).*reward_N.double\(\)\[:, None\]"),
    "no function": ({"reward_NF": torch.zeros(2, 0)}, ShapeError, r"shape \(2, 0\)"),
    "whole numbers": ({"reward_NF": torch.zeros(2, 1, dtype=torch.int64)}, ShapeError, "torch.int64"),
    "another length": (
        {"group_N": torch.tensor([0])},
        ShapeError,
        r"group_N is torch.int64 \(1,\), expected .* \(2,\)",
    ),
    "numbers with a point": ({"group_N": tensor([0, 0])}, ShapeError, r"float64 \(2,\), .*: write group_N.long\(\)"),
    "a gap": ({"group_N": torch.tensor([0, 2])}, ShapeError, "without a gap"),
    "below 0": ({"group_N": torch.tensor([-1, 0])}, ShapeError, "without a gap"),
    "weights": ({"weight_F": tensor([1, 2])}, ShapeError, r"weight_F has shape \(2,\), expected \(1,\)"),
    "infinite": ({"reward_NF": tensor([[math.inf], [1]])}, RewardError, r"1 of 2 rewards.*float\('nan'\)"),
}


@pytest.mark.parametrize(("changes", "error", "text"), BAD.values(), ids=BAD)
def test_rewards_that_do_not_belong_together_are_refused(changes, error, text):
    with pytest.raises(error, match=text):
        Rewards(**({"reward_NF": tensor([[1], [0]]), "group_N": torch.tensor([0, 0])} | changes))


@pytest.mark.parametrize("reward_PG", [torch.zeros(4), torch.zeros(0, 4), torch.zeros(4, 0)])
def test_groups_of_equal_size_need_two_dimensions_that_are_not_empty(reward_PG):
    with pytest.raises(ShapeError, match="num_generations"):
        Rewards.of_groups(reward_PG)
