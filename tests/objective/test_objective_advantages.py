"""Advantages: golden numbers, an independent re-statement of TRL 1.16, and rewards that are missing, equal or alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.errors import ConfigError, RewardError, ShapeError
from dppo.objective import ADVANTAGE_RULES, BATCH_SCALED, CENTRED, GROUP_SCALED, group_advantages, zero_signal

NAN = float("nan")


def rewards(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("reward", "settings", "expected"),
    [
        ([1, 0, 0, 0, 0, 0, 0, 0], {}, [2.474174] + [-0.353453] * 7),
        ([1, 0, 0, 0, 0, 0, 0, 0], {"eps": 1e-6}, [2.474867] + [-0.353552] * 7),
        ([1, 0, 0, 0, 0, 0, 0, 0], {"ddof": 0}, [2.644952] + [-0.377850] * 7),
        ([1, 1, 0, 0], {}, [0.865875, 0.865875, -0.865875, -0.865875]),
        ([1, 1, 0, 0], {"ddof": 0}, [0.999800, 0.999800, -0.999800, -0.999800]),
        ([1, 0, 1, 0, 0], {}, [1.095245, -0.730163, 1.095245, -0.730163, -0.730163]),
        ([2, 1, 0, 3], {}, [0.387268, -0.387268, -1.161805, 1.161805]),
        ([2, 1, 0, 3], {"scale": "none"}, [0.5, -0.5, -1.5, 1.5]),
    ],
)
def test_golden_numbers(reward, settings, expected):
    got = group_advantages(rewards(reward), **settings)
    torch.testing.assert_close(got, rewards(expected), rtol=0, atol=6e-7)


@pytest.mark.parametrize(
    ("size", "correct", "right", "wrong"),
    [
        (8, 1, 2.4749, -0.3536),
        (8, 4, 0.9354, -0.9354),
        (5, 1, 1.7889, -0.4472),
        (5, 2, 1.0954, -0.7303),
        (16, 1, 3.75, -0.25),
    ],
)
def test_binary_rewards_have_the_closed_form(size, correct, right, wrong):
    got = group_advantages(rewards([1] * correct + [0] * (size - correct)), eps=0.0)[0]
    assert got[0].item() == pytest.approx(right, abs=5e-5)
    assert got[-1].item() == pytest.approx(wrong, abs=5e-5)


def trl_advantages(reward_PG, scale):
    """TRL 1.16's arithmetic, one number at a time: Bessel, eps 1e-4, NaN rewards left out of statistics and zeroed."""

    def deviation(values):
        present = [v for v in values if v == v]
        if len(present) < 2:
            return NAN
        mean = sum(present) / len(present)
        return (sum((v - mean) ** 2 for v in present) / (len(present) - 1)) ** 0.5

    rows = reward_PG.tolist()
    out = []
    for row in rows:
        present = [v for v in row if v == v]
        mean = sum(present) / len(present) if present else NAN
        std = {"group": deviation(row), "batch": deviation([v for r in rows for v in r]), "none": None}[scale]
        advantage = [(v - mean) if std is None else (v - mean) / (std + 1e-4) for v in row]
        out.append([0.0 if a != a else a for a in advantage])
    return torch.tensor(out, dtype=reward_PG.dtype)


@given(
    rows=st.lists(
        st.lists(st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), st.just(NAN)), min_size=4, max_size=4),
        min_size=1,
        max_size=5,
    ),
    scale=st.sampled_from(["group", "batch", "none"]),
)
def test_equals_trl_on_rewards_that_may_be_missing(rows, scale):
    reward_PG = rewards(*rows)
    torch.testing.assert_close(
        group_advantages(reward_PG, scale=scale), trl_advantages(reward_PG, scale), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.1 + 0.2, 1 / 3, 1e6 / 7, -0.7, 0.0, 1e-30])
def test_equal_rewards_give_exactly_zero(value, dtype, scale):
    for size in range(1, 18):
        reward_PG = torch.full((1, size), value, dtype=dtype)
        other_PG = torch.arange(size, dtype=dtype)[None]
        advantage_PG = group_advantages(torch.cat([reward_PG, other_PG]), scale=scale)
        assert (advantage_PG[0] == 0).all()


def test_without_the_check_for_equal_rewards_rounding_would_become_an_advantage():
    reward_PG = torch.full((1, 6), 0.1 + 0.2, dtype=torch.float32)
    naive_PG = (reward_PG - reward_PG.mean(1, keepdim=True)) / (reward_PG.std(1, keepdim=True) + 1e-4)
    assert (naive_PG != 0).any()
    assert zero_signal(group_advantages(reward_PG)).all()


def test_rewards_summed_in_another_order_count_as_equal_but_a_real_difference_does_not():
    assert zero_signal(group_advantages(rewards([0.1 + 0.2, 0.3, 0.3, 0.3]))).all()
    assert not zero_signal(group_advantages(rewards([0.3 + 1e-12, 0.3, 0.3, 0.3]))).any()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_groups_without_a_comparison_get_zero(scale, ddof):
    assert (group_advantages(rewards([3.0], [5.0]), scale=scale, ddof=ddof) == 0).all()
    assert (group_advantages(rewards([3.0]), scale=scale, ddof=ddof) == 0).all()
    assert (group_advantages(rewards([NAN, NAN, NAN]), scale=scale, ddof=ddof, eps=0.0) == 0).all()
    assert (group_advantages(rewards([NAN, 7.0, NAN]), scale=scale, ddof=ddof, eps=0.0) == 0).all()


def test_missing_rewards_leave_the_others_as_if_they_were_absent():
    got = group_advantages(rewards([1.0, NAN, 0.0, NAN, 1.0], [NAN] * 5))
    expected = group_advantages(rewards([1.0, 0.0, 1.0]))
    torch.testing.assert_close(got[0, [0, 2, 4]], expected[0], rtol=0, atol=0)
    assert (got[0, [1, 3]] == 0).all()
    assert zero_signal(got).tolist() == [False, True]


def test_group_rules_do_not_see_other_groups_and_the_batch_rule_says_that_it_does():
    group = [2.0, 1.0, 0.0, 3.0]
    alone, beside = rewards(group), rewards(group, [9.0, 0.0, 0.0, 0.0])
    for rule in (GROUP_SCALED, CENTRED):
        torch.testing.assert_close(rule(alone)[0], rule(beside)[0], rtol=0, atol=0)
        assert rule.prompt_exact
        assert rule.reason == ""
    assert not torch.allclose(BATCH_SCALED(alone)[0], BATCH_SCALED(beside)[0], rtol=1e-2)
    assert not BATCH_SCALED.prompt_exact
    assert "rolled-out" in BATCH_SCALED.reason


def test_rules_go_by_the_names_of_scale_rewards():
    reward_PG = rewards([2.0, 1.0, 0.0, 3.0], [1.0, 0.0, 0.0, 0.0])
    for name, rule in ADVANTAGE_RULES.items():
        torch.testing.assert_close(rule(reward_PG), group_advantages(reward_PG, scale=name), rtol=0, atol=0)


def test_keeps_floating_dtypes_and_accepts_whole_numbers():
    assert group_advantages(torch.tensor([[1.0, 0.0]], dtype=torch.float32)).dtype == torch.float32
    assert group_advantages(torch.tensor([[1, 0]])).dtype == torch.get_default_dtype()


def test_refuses_what_it_cannot_use_and_names_it():
    with pytest.raises(ShapeError, match=r"\(4,\).*num_generations"):
        group_advantages(torch.zeros(4))
    with pytest.raises(RewardError, match="1 of 2 rewards"):
        group_advantages(rewards([1.0, float("inf")]))
    with pytest.raises(ConfigError, match=r"3 problems") as caught:
        group_advantages(rewards([1.0]), scale="rows", ddof=2, eps=-1.0)
    assert all(text in str(caught.value) for text in ("scale='rows'", "ddof=2", "eps=-1.0"))
