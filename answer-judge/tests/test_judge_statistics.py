"""Intervals over problems: against resampling and by hand, beside twins that are too narrow."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from answer_judge.statistics import benchmark_interval, bootstrap_means


def test_bootstrap_draws_problems_as_resampling_does():
    values = np.array([0.0, 0.25, 0.25, 1.0, 0.5])
    exact = Counter(round(sum(draw) / 5, 6) for draw in product(values, repeat=5))
    found = Counter(np.round(bootstrap_means(values, np.random.default_rng(1), 50_000), 6).tolist())
    for value, count in exact.items():
        assert found[value] / 50_000 == pytest.approx(count / 5**5, abs=0.012)


def test_interval_is_over_problems_not_over_samples():
    clear = np.array([0.0, 1.0] * 50)  # 16 samples each, all alike within a problem
    over_problems = benchmark_interval({"": clear}, np.random.default_rng(0))
    over_samples = benchmark_interval({"": np.repeat(clear, 16)}, np.random.default_rng(0))
    width = over_problems.high - over_problems.low
    assert width == pytest.approx(2 * 1.96 * 0.05, rel=0.1)
    assert width > 3.5 * (over_samples.high - over_samples.low), "samples as if independent: four times too narrow"


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1157), (1.0, 0.8843, 1.0), (0.5, 0.4422, 0.5578)])
def test_problems_that_all_agree_do_not_give_a_width_of_zero(value, low, high):
    found = benchmark_interval({"": np.full(30, value)}, np.random.default_rng(0))
    assert found.value == value and (found.low, found.high) == pytest.approx((low, high), abs=0.0001)
    assert found == benchmark_interval({"": np.full(30, value)}, np.random.default_rng(8)), "its formula has no draws"


def test_average_weighs_benchmarks_alike():
    sets = {"small": np.array([1.0, 0.0]), "large": np.array([0.0, 0.0, 0.0, 1.0] * 100)}
    found = benchmark_interval(sets, np.random.default_rng(0))
    assert found.value == pytest.approx((0.5 + 0.25) / 2)  # not the mean of all problems, 0.2512
    deviation = ((0.25 / 2 + 0.1875 / 400) / 4) ** 0.5
    assert found.low < found.value - deviation and found.high > found.value + deviation
    pooled = benchmark_interval({"": np.concatenate(list(sets.values()))}, np.random.default_rng(0))
    assert abs(pooled.value - found.value) > 0.1
