from itertools import product

import numpy as np

from dppo_lab.report.curves import band
from dppo_lab.runs.reader import Series
from dppo_lab.statistics import expanded_tail


def curve(x, y):
    return Series(x_I=np.array(x, dtype=float), value_I=np.array(y, dtype=float), left_out=0)


def test_the_mean_is_drawn_where_all_seeds_are():
    found = band([curve([0, 10], [0, 1]), curve([2, 6], [0.5, 0.5])])
    assert found.x_I.tolist() == [2, 6]
    np.testing.assert_allclose(found.mean_I, [(0.2 + 0.5) / 2, (0.6 + 0.5) / 2])
    assert band([curve([0, 1], [0, 1]), curve([2, 3], [0, 1])]) is None
    assert band([]) is None


def test_the_interval_holds_what_resampling_every_way_holds():
    """Enumerates all 27 resamples of three seeds, apart from the code under test."""
    values = [0.2, 0.5, 0.9]
    found = band([curve([0, 1], [value, 0.4]) for value in values])
    means = np.sort([np.mean(draw) for draw in product(values, repeat=3)])
    tail = expanded_tail(3)
    below = np.arange(1, 28) / 27
    low = means[np.searchsorted(below, tail)]
    high = means[::-1][np.searchsorted(below, tail)]
    np.testing.assert_allclose([found.low_I[0], found.high_I[0]], [low, high])
    np.testing.assert_allclose([found.low_I[1], found.high_I[1]], [0.4, 0.4])
