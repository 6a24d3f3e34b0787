"""Intervals: against enumeration and by hand, and how often they cover, beside twins that are too narrow."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy import stats

from answer_judge.statistics import benchmark_interval, bootstrap_means, problem_interval
from dppo.rng import Purpose, generator
from dppo_lab.statistics import expanded_tail, percentile_ends, seed_interval


@pytest.mark.parametrize("statistic", [np.mean, np.median])
@pytest.mark.parametrize("tail", [0.025, 0.1, 0.004])
def test_ends_are_quantiles_of_every_ordered_draw(statistic, tail):
    values = generator(3).normal(size=5)
    made = sorted(statistic(values[list(draw)]) for draw in product(range(5), repeat=5))
    low, high = percentile_ends(values, statistic, tail)
    place = math.ceil(tail * len(made)) - 1
    assert (low, high) == pytest.approx((made[place], made[-1 - place]))


def test_the_expanded_tail():
    """Hesterberg (2015), table 2: for n = 5 and a 95% interval each tail is 0.0010, for n = 20 it is 0.0159."""
    by_hand = stats.norm.cdf(-math.sqrt(5 / 4) * 2.7764451)
    assert expanded_tail(5) == pytest.approx(by_hand, rel=1e-6)
    assert [round(expanded_tail(n), 4) for n in (5, 10, 20)] == [0.001, 0.0086, 0.0159]
    assert expanded_tail(10**6) == pytest.approx(0.025, abs=1e-6)


def test_coverage_beside_the_twin_that_is_too_narrow():
    rng, hits = generator(11, Purpose.CHECK, 5), np.zeros(2)
    for _ in range(1500):
        values = rng.normal(size=5)
        for twin, tail in enumerate((expanded_tail(5), 0.025)):
            low, high = percentile_ends(values, np.mean, tail)
            hits[twin] += low <= 0 <= high
    error = 3 * math.sqrt(0.25 / 1500)
    assert hits[0] / 1500 >= 0.92 - error / 2
    assert hits[1] / 1500 <= 0.84 + error / 2, "the plain interval is too narrow"


def test_many_seeds_go_to_scipy_and_stay_repeatable():
    values = generator(5).normal(1.0, 0.1, size=9)
    first = percentile_ends(values, np.mean, expanded_tail(9))
    assert first == percentile_ends(values, np.mean, expanded_tail(9))
    exact = stats.t.interval(0.95, 8, values.mean(), values.std(ddof=1) / 3)
    assert first == pytest.approx(exact, abs=0.03)
    assert percentile_ends(np.full(9, 2.0), np.mean, 0.01) == (2.0, 2.0)


def test_fewer_than_three_seeds_have_no_interval():
    found = seed_interval({0: 1.0, 1: 3.0, 2: None})
    assert found.as_json() == {"mean": 2.0, "low": None, "high": None, "per_seed": {"0": 1.0, "1": 3.0, "2": None}}
    assert seed_interval({0: None}).centre is None
    assert seed_interval({0: 1.0, 1: 3.0, 2: 2.0}).as_json()["low"] == 1.0


def test_a_target_that_was_not_reached_counts():
    """By hand: 2, 3, 0, 2.5, 0 has the median 2; without the zeros it would be 2.5."""
    per_seed = {0: 2.0, 1: 3.0, 2: 0.0, 3: 2.5, 4: 0.0}
    found = seed_interval(per_seed, np.median)
    assert (found.centre, found.low, found.high) == (2.0, 0.0, 3.0)
    dropped = seed_interval({seed: value for seed, value in per_seed.items() if value}, np.median)
    assert dropped.centre == 2.5 and dropped.low > 0
    seconds = seed_interval({0: 10.0, 1: math.inf, 2: 12.0, 3: math.inf, 4: math.inf}, np.median)
    assert seconds.centre == math.inf and seconds.as_json("median")["median"] is None


def test_bootstrap_draws_problems_as_resampling_does():
    values = np.array([0.0, 0.25, 0.25, 1.0, 0.5])
    exact = Counter(round(sum(draw) / 5, 6) for draw in product(values, repeat=5))
    means = bootstrap_means(values, np.random.default_rng(1), 50_000)
    found = Counter(np.round(means, 6).tolist())
    for value, count in exact.items():
        assert found[value] / 50_000 == pytest.approx(count / 5**5, abs=0.012)


def test_interval_is_over_problems_not_over_samples():
    clear = np.array([0.0, 1.0] * 50)  # 16 samples each, all alike within a problem
    over_problems = problem_interval(clear, np.random.default_rng(0))
    over_samples = problem_interval(np.repeat(clear, 16), np.random.default_rng(0))
    width = over_problems.high - over_problems.low
    assert width == pytest.approx(2 * 1.96 * 0.05, rel=0.1)
    assert width > 3.5 * (over_samples.high - over_samples.low), "samples as if independent: four times too narrow"


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.1157), (1.0, 0.8843, 1.0), (0.5, 0.4422, 0.5578)])
def test_problems_that_all_agree_do_not_give_a_width_of_zero(value, low, high):
    found = problem_interval(np.full(30, value), np.random.default_rng(0))
    assert found.value == value
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.0001)
    assert found == problem_interval(np.full(30, value), np.random.default_rng(8)), "by its formula, without draws"


def test_average_weighs_benchmarks_alike():
    sets = {"small": np.array([1.0, 0.0]), "large": np.array([0.0, 0.0, 0.0, 1.0] * 100)}
    found = benchmark_interval(sets, np.random.default_rng(0))
    assert found.value == pytest.approx((0.5 + 0.25) / 2)  # not the mean of all problems, 0.2512
    deviation = ((0.25 / 2 + 0.1875 / 400) / 4) ** 0.5
    assert found.low < found.value - deviation and found.high > found.value + deviation
    pooled = problem_interval(np.concatenate(list(sets.values())), np.random.default_rng(0))
    assert abs(pooled.value - found.value) > 0.1
