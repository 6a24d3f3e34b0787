"""What the predictor of difficulty refuses, and with which words."""

import numpy as np
import pytest
import torch

from dppo.errors import ConfigError, DataError, RewardError, ShapeError
from dppo.pruning import DifficultyPredictor
from dppo.rng import Purpose, generator
from dppo.types import Rewards


def features(size=240):
    return generator(0, Purpose.CHECK).normal(size=(size, 2))


def test_settings_out_of_range_are_named_together():
    with pytest.raises(ConfigError, match=r"3 problems\n.*ranges=.*\n.*discount=0 .*\n.*ridge=-1"):
        DifficultyPredictor(features(), ranges=[(1.0, 0.0)], discount=0, ridge=-1)
    for ranges in ([], [(0, 1, 2)], [(0, float("inf"))], [("a", "b")], [0.5], [(True, 2)]):
        with pytest.raises(ConfigError, match=r"ranges=.*Try ranges=\[\(0.0, 1.0\)\]"):
            DifficultyPredictor(features(), ranges=ranges)


def test_features_that_are_no_numbers_are_named():
    bad = features()
    bad[7, 1] = np.nan
    with pytest.raises(DataError, match="feature 1 of row 7 is not a finite"):
        DifficultyPredictor(bad)
    for wrong in (features()[:, 0], features().astype(int), features()[:, :0], np.array([["a"]])):
        with pytest.raises(ShapeError, match=r"expected floats \(prompts, features\)"):
            DifficultyPredictor(wrong)
    with pytest.raises(ShapeError, match=r"features \(9, 2\) in place of \(240, 2\)"):
        DifficultyPredictor(features()).refresh(features(size=9))


def test_rewards_outside_the_declared_range_are_refused_and_nothing_is_learned():
    predictor = DifficultyPredictor(features(), ranges=[(0.0, 1.0), (-1.0, 1.0)])
    pair = torch.tensor([[0.5, 0.0], [1.0, -1.5]])
    with pytest.raises(RewardError, match=r"completion 1 has reward -1.5 of function 1, outside.*\[-1.5, 1\]"):
        predictor.update([3], Rewards.in_groups(pair, 2), 0)
    assert predictor.step == -1 and (predictor.predict([3], 0) == torch.tensor([[0.5, 0.0]])).all()
    sums = torch.tensor([[0.1 + 0.2 + 0.7, 1.0], [1 + 1e-7, 0.0]], dtype=torch.float32)
    predictor.update([3], Rewards.in_groups(sums, 2), 0)
    assert predictor.step == 0


def test_rows_and_groups_that_do_not_fit_are_refused():
    predictor, two = DifficultyPredictor(features()), Rewards.of_groups(torch.ones(2, 3))
    with pytest.raises(ShapeError, match="3 rows for 2 groups"):
        predictor.update([1, 2, 3], two, 0)
    with pytest.raises(ShapeError, match=r"1 ranges for 2 reward functions.*\* 2"):
        predictor.update([1], Rewards.in_groups(torch.ones(3, 2), 3), 0)
    with pytest.raises(DataError, match="rows -1 to 5 are not all among the 240"):
        predictor.predict([5, -1], 0)
    with pytest.raises(ShapeError, match=r"expected \(P,\)"):
        predictor.predict(np.zeros((2, 2)), 0)
