"""Estimates against enumeration and golden numbers, and intervals against what they claim."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dppo.errors import ConfigError
from dppo.evaluation.metrics import (
    average,
    bootstrap_means,
    breakdown,
    default_ks,
    estimate,
    maj_at_k,
    pass_at_k,
)


def some_right(samples, right, k):
    """pass@k by looking at every subset."""
    subsets = list(combinations([i < right for i in range(samples)], k))
    return sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for samples in range(1, 8):
        for right in range(samples + 1):
            for k in range(1, samples + 1):
                assert pass_at_k(samples, right, k) == pytest.approx(some_right(samples, right, k), abs=1e-15)


def test_pass_at_k_golden_numbers():
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # one subset of ten holds no right one
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(16, 4, 1) == 0.25
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    assert pass_at_k(2000, 3, 1000) == pytest.approx(1 - (1000 * 999 * 998) / (2000 * 1999 * 1998))
    assert pass_at_k(8, 0, 8) == 0.0 and pass_at_k(8, 1, 8) == 1.0


def test_the_biased_plug_in_is_not_it():
    plug_in = 1 - (1 - 2 / 5) ** 3
    assert abs(plug_in - some_right(5, 2, 3)) > 0.1


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 2), (0, 0, 1)])
def test_pass_at_k_out_of_range(samples, right, k):
    with pytest.raises(ConfigError, match=f"pass@{k} of {samples} samples"):
        pass_at_k(samples, right, k)


def maj(text, k=None):
    """maj@k of votes written as letters: R is right, . is no answer."""
    votes = [None if c == "." else c for c in text]
    return maj_at_k(votes, [c == "R" for c in text], k or len(text))


def test_majority_golden_numbers():
    assert maj("RRa") == 1.0 and maj("Raa") == 0.0
    assert maj("Ra") == 0.5 and maj("RRaabb") == pytest.approx(1 / 3)  # a tie is decided by lot
    assert maj("R...") == 1.0 and maj("....") == 0.0  # those without an answer do not vote
    assert maj("aabR") == 0.0
    assert maj("RaaRRb", 3) == 0.5  # blocks: Raa is lost, RRb is won
    assert maj("RaRRa", 2) == 0.75  # Ra is a tie, RR is won, the last one is left over
    assert maj("Rab", 1) == pytest.approx(1 / 3)


def test_right_answers_vote_together_however_they_are_spelt():
    assert maj_at_k(["1/2", "0.5", "2", "2"], [True, True, False, False], 4) == 0.5
    assert maj_at_k(["1/2", "0.5", "2", "2"], [False, False, False, False], 4) == 0.0
    assert maj_at_k([None], [True], 1) == 1.0


@given(st.text("Rab.", min_size=1, max_size=6))
def test_majority_is_the_chance_of_a_lot_among_the_front(text):
    counts = Counter(c for c in text if c != ".")
    front = [c for c in counts if counts[c] == max(counts.values())]
    assert maj(text) == pytest.approx(float(Fraction("R" in front, len(front) or 1)))


def test_majority_out_of_range():
    with pytest.raises(ConfigError, match="maj@3 of 2 samples"):
        maj("Ra", 3)


def test_default_ks():
    assert default_ks(1) == (1,) and default_ks(16) == (1, 2, 4, 8, 16) and default_ks(12) == (1, 2, 4, 8, 12)


def test_bootstrap_of_two_problems_by_enumeration():
    means = bootstrap_means(np.array([0.0, 1.0]), np.random.default_rng(0), 40_000)
    shares = {value: (means == value).mean() for value in (0.0, 0.5, 1.0)}
    # Standard error 0.0025: six of them.
    assert shares == pytest.approx({0.0: 0.25, 0.5: 0.5, 1.0: 0.25}, abs=0.015)


def test_bootstrap_draws_problems_as_resampling_does():
    values = np.array([0.0, 0.25, 0.25, 1.0, 0.5])
    exact = Counter(round(sum(draw) / 5, 6) for draw in product(values, repeat=5))
    means = bootstrap_means(values, np.random.default_rng(1), 50_000)
    found = Counter(np.round(means, 6).tolist())
    for value, count in exact.items():
        assert found[value] / 50_000 == pytest.approx(count / 5**5, abs=0.012)


def test_bootstrap_in_parts_is_the_same_distribution():
    values = np.random.default_rng(2).random(3000)  # all distinct: drawn in parts
    means = bootstrap_means(values, np.random.default_rng(3), 1500)
    assert len(means) == 1500
    assert means.mean() == pytest.approx(values.mean(), abs=6 * values.std() / 3000**0.5 / 1500**0.5)
    assert means.std() == pytest.approx(values.std() / 3000**0.5, rel=0.12)


def test_interval_is_over_problems_not_over_samples():
    clear = np.array([0.0, 1.0] * 50)  # 16 samples each, all alike within a problem
    over_problems = estimate(clear, np.random.default_rng(0))
    over_samples = estimate(np.repeat(clear, 16), np.random.default_rng(0))
    width = over_problems.high - over_problems.low
    assert width == pytest.approx(2 * 1.96 * 0.05, rel=0.1)
    assert width > 3.5 * (over_samples.high - over_samples.low), "samples as if independent: four times too narrow"


def test_interval_holds_the_mean_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr("dppo.evaluation.metrics.RESAMPLES", 1000)
    rng, hits = np.random.default_rng(5), 0
    for _ in range(300):
        found = estimate(rng.binomial(4, rng.beta(1, 1, 100)) / 4, rng)
        hits += found.low <= 0.5 <= found.high
    assert 0.90 <= hits / 300 <= 0.985  # 0.95 with a standard error of 0.0126: four below, three above


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1157), (1.0, 0.8843, 1.0), (0.5, 0.4422, 0.5578)])
def test_problems_that_all_agree_do_not_give_a_width_of_zero(value, low, high):
    found = estimate(np.full(30, value), np.random.default_rng(0))
    assert found.value == value
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.004)


def test_no_change_at_all_has_a_width_too():
    found = estimate(np.zeros(500), np.random.default_rng(0), (-1.0, 1.0))
    assert (found.low, found.high) == pytest.approx((-0.00735, 0.00735), abs=0.0005)


def test_average_weighs_benchmarks_alike():
    sets = {"small": np.array([1.0, 0.0]), "large": np.array([0.0, 0.0, 0.0, 1.0] * 100)}
    found = average(sets, np.random.default_rng(0))
    assert found.value == pytest.approx((0.5 + 0.25) / 2)  # not the mean of all problems, 0.2512
    deviation = ((0.25 / 2 + 0.1875 / 400) / 4) ** 0.5
    assert found.low < found.value - deviation and found.high > found.value + deviation
    pooled = estimate(np.concatenate(list(sets.values())), np.random.default_rng(0))
    assert abs(pooled.value - found.value) > 0.1


def test_intervals_are_repeatable():
    values = np.array([0.0, 0.5, 1.0])
    assert estimate(values, np.random.default_rng(7)) == estimate(values, np.random.default_rng(7))


def test_breakdown_by_label():
    found = breakdown(["2", "1", "2", None], np.array([1.0, 0.0, 0.0, 1.0]), np.random.default_rng(0))
    assert {name: (row["problems"], row["value"]) for name, row in found.items()} == {
        "1": (1, 0.0),
        "2": (2, 0.5),
        "unknown": (1, 1.0),
    }
    assert breakdown([None, None], np.array([1.0, 0.0]), np.random.default_rng(0)) == {}
