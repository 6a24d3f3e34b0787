"""Censored times to a target: by hand, against scipy, and beside twins that flatter."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dppo.rng import generator
from dppo_lab.comparison.curves import Reach
from dppo_lab.comparison.survival import (
    common_horizon,
    median_amount,
    median_interval,
    ratio,
    survival,
)
from dppo_lab.statistics import expanded_tail, percentile_ends


def hit(amount):
    return Reach(amount=float(amount), reached=True)


def miss(amount):
    return Reach(amount=float(amount), reached=False)


def by_seed(*runs):
    return dict(enumerate(runs))


FIVE = [hit(10), miss(25), hit(20), hit(30), miss(40)]


def test_the_curve_by_hand():
    """4/5 after 10, 3/5 after 20; the run that ends at 25 leaves two going, so 30 takes half of 3/5."""
    amount, share = survival(FIVE)
    assert amount.tolist() == [10, 20, 25, 30, 40]
    assert share[0] == pytest.approx([0.8, 0.6, 0.6, 0.3, 0.3])


def test_the_curve_is_scipys():
    rng = generator(7)
    for _ in range(40):
        amounts = rng.integers(1, 9, size=rng.integers(1, 9))
        found = [Reach(amount=float(amount), reached=bool(rng.random() < 0.6)) for amount in amounts]
        done, cut = ([run.amount for run in found if run.reached is reached] for reached in (True, False))
        curve = stats.ecdf(stats.CensoredData(uncensored=done, right=cut)).sf
        amount, share = survival(found)
        for place in amount:
            assert share[0][amount <= place][-1] == pytest.approx(float(curve.evaluate(place)))
        places = rng.integers(len(found), size=len(found))
        assert median_amount(found, places[None])[0] == median_amount([found[place] for place in places])[0]


def test_medians_by_hand():
    assert median_amount(FIVE)[0] == 30
    assert median_amount([hit(1), hit(2), hit(4), hit(9)])[0] == 3, "as the median of an even number"
    assert median_amount([hit(3), hit(1), hit(2)])[0] == 2
    assert median_amount([hit(1), hit(2), miss(9), miss(9)])[0] == math.inf, "half of the seeds never got there"
    assert median_amount([miss(5)])[0] == math.inf


def test_the_median_of_seeds_has_an_interval():
    found = median_interval({0: hit(10), 1: miss(25), 2: hit(20), 3: hit(30), 4: None, 5: hit(12)})
    assert (found.centre, found.low, found.high) == (20, 10, math.inf)
    assert found.per_seed == {0: 10, 1: None, 2: 20, 3: 30, 4: None, 5: 12}
    assert median_interval({0: None}).centre is None


def test_up_to_the_horizon_every_run_is_known():
    assert common_horizon(FIVE) == 25
    assert common_horizon([hit(1), hit(4)]) == 4


def test_ratios_by_hand():
    """Ratios 3 and 2; at most 100/80; at least 200/50; nothing known. Worst for the method: 3, 2, 0, 4, 0."""
    baseline = by_seed(hit(90), hit(80), hit(100), miss(200), miss(200))
    method = by_seed(hit(30), hit(40), miss(80), hit(50), miss(80))
    found = ratio(baseline, method)
    assert found.per_seed == {0: (3, 3), 1: (2, 2), 2: (0, 1.25), 3: (4, math.inf), 4: (0, math.inf)}
    assert (found.median, found.at_most, found.both_reached) == (2, 3, 2.5)
    assert found.missed == {"method": 1, "baseline": 1, "both": 1}
    assert (found.low, found.high) == (0, math.inf)
    # Up to 80, where the first run was censored: 80, 80, 80, 80, 80 against 30, 40, 80, 50, 80.
    assert found.horizon == 80 and found.mean.centre == pytest.approx(400 / 280)
    assert found.as_json()["reached"] == "3 of 5" and found.as_json()["per_seed"]["3"] == [4, None]


SLOW = [10.0, 100.0, 30.0, 300.0, 60.0]
"""Seconds of five seeds that differ much, on which a method always takes half."""


def test_the_interval_is_paired():
    """The wrong twin resamples the two apart: seeds differ by 30 times, and that is what its interval shows."""
    found = ratio(by_seed(*map(hit, SLOW)), by_seed(*[hit(seconds / 2) for seconds in SLOW]))
    assert (found.median, found.low, found.high) == (2, 2, 2)
    assert (found.mean.centre, found.mean.low, found.mean.high) == pytest.approx((2, 2, 2))
    places = np.array(list(product(range(5), repeat=5)))[::7]
    means = np.array(SLOW)[places].mean(1)
    apart = (means[:, None] / (means[None] / 2)).ravel()
    assert np.quantile(apart, 0.01) < 0.8 and np.quantile(apart, 0.99) > 5


def test_the_interval_of_means_by_enumeration():
    one, other = np.array([9.0, 4.0, 16.0]), np.array([3.0, 4.0, 2.0])
    found = ratio(by_seed(*map(hit, one)), by_seed(*map(hit, other))).mean
    made = sorted(one[list(draw)].mean() / other[list(draw)].mean() for draw in product(range(3), repeat=3))
    place = max(0, math.ceil(expanded_tail(3) * len(made)) - 1)
    assert (found.low, found.high) == pytest.approx((made[place], made[-1 - place]))


def test_without_censoring_the_interval_is_that_of_the_median():
    values = generator(2).uniform(1, 3, size=6)
    found = ratio(by_seed(*[hit(10 * value) for value in values]), by_seed(*[hit(10)] * 6))
    assert (found.low, found.high) == pytest.approx(percentile_ends(values, np.median, expanded_tail(6)))


def speedup_of_truth(seconds, shares, length):
    """Pairs of a method that truly needs ``shares`` of the baseline's seconds, both cut off at ``length``."""

    def cut(value):
        return hit(value) if value <= length else miss(length)

    return ratio(by_seed(*map(cut, seconds)), by_seed(*map(cut, np.multiply(seconds, shares))))


def test_what_is_cut_off_never_raises_the_median():
    """Over many random experiments, at every length: at most the median of the uncut runs, which twins exceed."""
    rng, dropped_more = generator(9), 0
    for _ in range(100):
        seconds, shares = rng.lognormal(3, 1, size=5), rng.lognormal(-0.5, 0.6, size=5)
        whole = speedup_of_truth(seconds, shares, math.inf)
        cut = speedup_of_truth(seconds, shares, float(rng.uniform(5, 60)))
        assert cut.median is None or cut.median <= whole.median + 1e-12
        assert cut.at_most >= whole.median - 1e-12
        dropped_more += cut.both_reached is not None and cut.both_reached > whole.median + 1e-12
    assert dropped_more > 10, "leaving out what was censored flatters"
