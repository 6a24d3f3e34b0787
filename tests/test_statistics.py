"""Intervals: against enumeration and by hand, and how often they cover, beside twins that are too narrow."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dppo.lab.statistics import expanded_tail, resampled_ends, seed_interval
from dppo.rng import Purpose, generator


def percentile_ends(values, statistic, tail):
    return resampled_ends(lambda places: statistic(values[places], axis=-1), len(values), tail)


@pytest.mark.parametrize("statistic", [np.mean, np.median])
@pytest.mark.parametrize("tail", [0.1, 0.004])
def test_ends_are_quantiles_of_every_ordered_draw(statistic, tail):
    values = generator(3).normal(size=5)
    made = sorted(statistic(values[list(draw)]) for draw in product(range(5), repeat=5))
    low, high = percentile_ends(values, statistic, tail)
    near = [math.ceil(share * len(made)) - 1 for share in (0.6 * tail, 1.4 * tail)]  # of 9999 draws at random
    assert made[near[0]] <= low <= made[near[1]] and made[-1 - near[1]] <= high <= made[-1 - near[0]]


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


def test_a_target_that_was_not_reached_counts_and_fewer_than_three_seeds_have_no_interval():
    """By hand: 2, 3, 0, 2.5, 0 has the median 2; without the zeros it would be 2.5."""
    found = seed_interval({0: 2.0, 1: 3.0, 2: 0.0, 3: 2.5, 4: 0.0}, np.median)
    assert (found.centre, found.low, found.high) == (2.0, 0.0, 3.0)
    seconds = seed_interval({0: 10.0, 1: math.inf, 2: 12.0, 3: math.inf, 4: math.inf}, np.median)
    assert seconds.centre == math.inf and seconds.as_json("median")["median"] is None
    found = seed_interval({0: 1.0, 1: 3.0, 2: None})
    assert found.as_json() == {"mean": 2.0, "low": None, "high": None, "per_seed": {"0": 1.0, "1": 3.0, "2": None}}
    assert seed_interval({0: None}).centre is None and seed_interval({0: 1.0, 1: 3.0, 2: 2.0}).low == 1.0
