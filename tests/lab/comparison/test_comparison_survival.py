"""Censored times to a target: by hand, and beside twins that flatter."""

import math

import numpy as np

from dppo.lab.comparison.curves import Reach
from dppo.lab.comparison.survival import median_amount, median_interval, ratio
from dppo.rng import generator


def hit(amount):
    return Reach(amount=float(amount), reached=True)


def miss(amount):
    return Reach(amount=float(amount), reached=False)


def test_medians_by_hand():
    """First 3/5 are left after 20; the run that ends at 25 leaves two going, so 30 takes half of that."""
    assert median_amount([hit(10), miss(25), hit(20), hit(30), miss(40)]) == 30
    assert median_amount([hit(1), hit(2), hit(4), hit(9)]) == 3, "as the median of an even number"
    assert median_amount([hit(1), hit(2), hit(4), miss(9)]) == 3, "so too with one censored beyond the middle"
    assert median_amount([hit(3), hit(1), hit(2)]) == 2
    assert median_amount([hit(1), hit(2), miss(9), miss(9)]) == math.inf, "half of the seeds never got there"
    assert median_amount([miss(5)]) == math.inf


def test_the_median_of_seeds_has_an_interval():
    found = median_interval({0: hit(10), 1: miss(25), 2: hit(20), 3: hit(30), 4: None, 5: hit(12)})
    assert (found.centre, found.low, found.high) == (20, 10, math.inf)
    assert found.per_seed == {0: 10, 1: None, 2: 20, 3: 30, 4: None, 5: 12}
    assert median_interval({0: None}).centre is None


def test_ratios_by_hand():
    """Ratios 3 and 2; at most 100/80; at least 200/50; nothing known. Worst for the method: 3, 2, 0, 4, 0."""
    baseline = [hit(90), hit(80), hit(100), miss(200), miss(200)]
    method = [hit(30), hit(40), miss(80), hit(50), miss(80)]
    found = ratio(dict(enumerate(baseline)), dict(enumerate(method)))
    assert found["per_seed"] == {"0": [3, 3], "1": [2, 2], "2": [0, 1.25], "3": [4, None], "4": [0, None]}
    assert (found["median"], found["at_most"], found["reached"]) == (2, 3, "3 of 5")
    assert found["missed"] == {"method": 1, "baseline": 1, "both": 1}
    assert (found["low"], found["high"]) == (0, None)
    # The interval is paired.
    found = speedup_of_truth([10.0, 100.0, 30.0, 300.0, 60.0], [0.5] * 5, math.inf)
    assert (found["median"], found["low"], found["high"]) == (2, 2, 2)


def speedup_of_truth(seconds, shares, length):
    """Pairs of a method that truly needs ``shares`` of the baseline's seconds, both cut off at ``length``."""

    def cut(value):
        return hit(value) if value <= length else miss(length)

    first, second = (dict(enumerate(map(cut, each))) for each in (seconds, np.multiply(seconds, shares)))
    return ratio(first, second)


def test_what_is_cut_off_never_raises_the_median():
    """Over many random experiments, at every length: at most the median of the uncut runs, which twins exceed."""
    rng, dropped_more = generator(9), 0
    for _ in range(100):
        seconds, shares = rng.lognormal(3, 1, size=5), rng.lognormal(-0.5, 0.6, size=5)
        whole = speedup_of_truth(seconds, shares, math.inf)
        cut = speedup_of_truth(seconds, shares, float(rng.uniform(5, 60)))
        assert cut["median"] is None or cut["median"] <= whole["median"] + 1e-12
        assert cut["at_most"] is None or cut["at_most"] >= whole["median"] - 1e-12
        clear = [low for low, high in cut["per_seed"].values() if low == high]
        dropped_more += bool(clear) and np.median(clear) > whole["median"] + 1e-12
    assert dropped_more > 10, "leaving out what was censored flatters"
