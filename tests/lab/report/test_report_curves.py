from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dppo_lab.report.curves import band, mean_over_seeds
from dppo_lab.report.sources import Group
from dppo_lab.runs.folder import ACCURACY
from dppo_lab.runs.reader import RunRecord, Series
from dppo_lab.statistics import expanded_tail


def run_of(logs, seed=0, status="finished"):
    return RunRecord(folder=Path("run"), method="dppo", seed=seed, status=status, logs=tuple(logs))


def curve(x, y):
    return Series(x_I=np.array(x, dtype=float), value_I=np.array(y, dtype=float), left_out=0)


def test_accuracy_over_a_total_takes_the_last_evaluation_of_an_update():
    logs = [
        {"step": 0, "eval/average/pass@1": 0.1, "total/seconds": 0.0},
        {"step": 5, "prune/kept_share": 0.3, "total/seconds": 4.0},
        {"step": 5, "eval/average/pass@1": 0.3, "total/seconds": 4.0},
        {"step": 5, "eval/average/pass@1": 0.4, "total/seconds": 4.5},
        {"step": 9, "eval/average/pass@1": float("nan"), "total/seconds": 9.0},
    ]
    found = run_of(logs).series(ACCURACY, "total/seconds")
    assert found.x_I.tolist() == [0.0, 4.5]
    assert found.value_I.tolist() == [0.1, 0.4]
    assert found.left_out == 1
    assert run_of(logs).series(ACCURACY, "total/rollouts").left_out == 3


def test_the_mean_is_drawn_where_all_seeds_are():
    found = band([curve([0, 10], [0, 1]), curve([2, 6], [0.5, 0.5])])
    assert found.x_I.tolist() == [2, 6]
    np.testing.assert_allclose(found.mean_I, [(0.2 + 0.5) / 2, (0.6 + 0.5) / 2])
    assert band([curve([0, 1], [0, 1]), curve([2, 3], [0, 1])]) is None
    assert band([]) is None


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_interval(seeds):
    found = band([curve([0, 1], [0.1 * seed, 0.5]) for seed in range(seeds)])
    assert found.low_I is None
    assert found.high_I is None


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


def test_a_figure_is_averaged_at_the_updates_all_seeds_logged():
    runs = [
        run_of([{"step": s, "x": v} for s, v in logs], seed=seed)
        for seed, logs in enumerate([[(1, 1.0), (2, 2.0), (3, 3.0)], [(2, 4.0), (3, 7.0), (4, 9.0)]])
    ]
    failed = run_of([{"step": 2, "x": 1000.0}], seed=2, status="failed")
    step_I, mean_I = mean_over_seeds(Group(label="dppo", runs=(*runs, failed)), "x")
    assert step_I.tolist() == [2, 3]
    assert mean_I.tolist() == [3.0, 5.0]
    assert len(mean_over_seeds(Group(label="dppo", runs=(failed,)), "x")[0]) == 0
