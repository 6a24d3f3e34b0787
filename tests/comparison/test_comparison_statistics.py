"""Intervals over seeds: against enumeration by hand, and how often they cover, beside the twin that is too narrow."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dppo.comparison.statistics import (
    all_resamples,
    expanded_tail,
    interval,
    paired,
    percentile_ends,
    speedup,
)
from dppo.rng import generator


def test_all_resamples_are_those_of_every_ordered_draw():
    index_RN, prob_R = all_resamples(4)
    found = {tuple(index): prob for index, prob in zip(index_RN.tolist(), prob_R, strict=True)}
    counted: dict[tuple[int, ...], int] = {}
    for draw in itertools.product(range(4), repeat=4):
        key = tuple(sorted(draw))
        counted[key] = counted.get(key, 0) + 1
    assert found == pytest.approx({key: count / 4**4 for key, count in counted.items()})


@pytest.mark.parametrize("statistic", [np.mean, np.median])
@pytest.mark.parametrize("tail", [0.025, 0.1, 0.004])
def test_ends_are_quantiles_of_every_ordered_draw(statistic, tail):
    value_N = generator(3).normal(size=5)
    made = sorted(statistic(value_N[list(draw)]) for draw in itertools.product(range(5), repeat=5))
    low, high = percentile_ends(value_N, statistic, tail)
    place = math.ceil(tail * len(made)) - 1
    assert (low, high) == pytest.approx((made[place], made[-1 - place]))


def test_the_expanded_tail():
    """Hesterberg (2015), table 2: for n = 5 and a 95% interval each tail is 0.0010, for n = 20 it is 0.0159."""
    by_hand = stats.norm.cdf(-math.sqrt(5 / 4) * 2.7764451)
    assert expanded_tail(5) == pytest.approx(by_hand, rel=1e-6)
    assert [round(expanded_tail(n), 4) for n in (5, 10, 20)] == [0.001, 0.0086, 0.0159]
    assert expanded_tail(10**6) == pytest.approx(0.025, abs=1e-6)


def coverage(seeds, tail, rounds=1500):
    """How often the interval of the mean of normal values holds their centre."""
    rng, hits = generator(11, seeds), 0
    for _ in range(rounds):
        low, high = percentile_ends(rng.normal(size=seeds), np.mean, tail)
        hits += low <= 0 <= high
    return hits / rounds


@pytest.mark.parametrize(("seeds", "expanded", "plain"), [(5, 0.92, 0.84), (6, 0.93, 0.86)])
def test_coverage_beside_the_twin_that_is_too_narrow(seeds, expanded, plain):
    error = 3 * math.sqrt(0.25 / 1500)
    assert coverage(seeds, expanded_tail(seeds)) >= expanded - error / 2
    assert coverage(seeds, 0.025) <= plain + error / 2, "the plain interval would do"


def test_many_seeds_go_to_scipy_and_stay_repeatable():
    value_N = generator(5).normal(1.0, 0.1, size=9)
    first = percentile_ends(value_N, np.mean, expanded_tail(9))
    assert first == percentile_ends(value_N, np.mean, expanded_tail(9))
    exact = stats.t.interval(0.95, 8, value_N.mean(), value_N.std(ddof=1) / 3)
    assert first == pytest.approx(exact, abs=0.03)
    assert percentile_ends(np.full(9, 2.0), np.mean, 0.01) == (2.0, 2.0)


def test_fewer_than_three_seeds_have_no_interval():
    found = interval({0: 1.0, 1: 3.0, 2: None})
    assert found.as_json() == {"mean": 2.0, "low": None, "high": None, "per_seed": {"0": 1.0, "1": 3.0, "2": None}}
    assert interval({0: None}).centre is None
    assert interval({0: 1.0, 1: 3.0, 2: 2.0}).as_json()["low"] == 1.0


def test_a_target_that_was_not_reached_counts():
    """By hand: 2, 3, 0, 2.5, 0 has the median 2; without the zeros it would be 2.5."""
    per_seed = {0: 2.0, 1: 3.0, 2: 0.0, 3: 2.5, 4: 0.0}
    found = interval(per_seed, np.median)
    assert (found.centre, found.low, found.high) == (2.0, 0.0, 3.0)
    dropped = interval({seed: value for seed, value in per_seed.items() if value}, np.median)
    assert dropped.centre == 2.5 and dropped.low > 0
    seconds = interval({0: 10.0, 1: math.inf, 2: 12.0, 3: math.inf, 4: math.inf}, np.median)
    assert seconds.centre == math.inf and seconds.as_json("median")["median"] is None


def test_speedups():
    assert speedup(12.0, 4.0) == 3.0
    assert speedup(12.0, math.inf) == 0.0
    assert speedup(0.0, 0.0) == 1.0


def test_pairs_are_by_seed():
    """By hand; seeds that differ much and methods that do not: paired differences are narrow, unpaired ones are not."""
    left, right = {0: 0.51, 1: 0.71, 2: 0.92}, {2: 0.90, 1: 0.70, 0: 0.50}
    found = interval(paired(left, right))
    assert found.per_seed == pytest.approx({0: 0.01, 1: 0.01, 2: 0.02})
    unpaired = interval(paired(left, {0: 0.90, 1: 0.50, 2: 0.70}))
    assert found.low > 0 and unpaired.low < 0
    assert paired({0: 1.0, 1: None}, {0: 3.0}) == {0: -2.0, 1: None}
