"""The predictor of difficulty: it learns a known model, follows a policy, never peeks, and goes on bit by bit."""

import numpy as np
import torch
from refusals import refused

from dppo.errors import CheckpointError, ConfigError, RewardError
from dppo.pruning import DifficultyPredictor
from dppo.pruning.logistic import expansion, logistic, posterior_mode
from dppo.rng import Purpose, generator
from dppo.types import Rewards

SIZE, STEP_PROMPTS, GROUP = 240, 24, 4
TRUE_K = np.array([0.5, 1.5, -1.0])


def features(seed=0, size=SIZE, width=2):
    return generator(seed, Purpose.CHECK).normal(size=(size, width))


def standardised(feature_PD):
    return (feature_PD - feature_PD.mean(0)) / feature_PD.std(0)


def rates(feature_PD, true_K=TRUE_K):
    """(P,) chances of a right answer by a logistic model."""
    return logistic(true_K[0] + standardised(feature_PD) @ true_K[1:])


def blocks(rate_P, steps, seed=1, group=GROUP):
    """Rows and rewards of some steps, with rewards of 0 and 1 at these rates."""
    rng = generator(seed, Purpose.CHECK)
    for _ in range(steps):
        rows = rng.permutation(len(rate_P))[:STEP_PROMPTS]
        right = rng.random((STEP_PROMPTS, group)) < rate_P[rows, None]
        yield rows, Rewards.of_groups(torch.from_numpy(right.astype(np.float64)))


def taught(predictor, found, first=0):
    for step, (rows, rewards) in enumerate(found, first):
        predictor.update(rows, rewards, step)
    return predictor


def predictions(predictor, step=10**6):
    return predictor.predict(np.arange(len(predictor)), step)[:, 0].numpy()


# What it learns.


def test_a_known_model_is_recovered():
    feature_PD = features()
    rate_P = rates(feature_PD)
    found = predictions(taught(DifficultyPredictor(feature_PD, discount=1.0), blocks(rate_P, 60)), step=60)
    assert np.abs(found - rate_P).max() < 0.06 and np.corrcoef(found, rate_P)[0, 1] > 0.995
    # The wrong twins: another feature alone, and the mean over all prompts.
    other = predictions(taught(DifficultyPredictor(features(9), discount=1.0), blocks(rate_P, 60)), step=60)
    assert np.abs(other - rate_P).mean() > 0.15 and np.abs(rate_P.mean() - rate_P).mean() > 0.15


def test_the_running_quadratic_says_what_all_data_at_once_say():
    """Against the maximum over everything that was seen. The wrong twin forgets where the likelihood was expanded."""
    feature_PD = features()
    found = list(blocks(rates(feature_PD), 30))
    predictor = taught(DifficultyPredictor(feature_PD, discount=1.0), found)
    rows = np.concatenate([rows for rows, _ in found])
    target_Q = np.concatenate([rewards.reward_NF.view(-1, GROUP).mean(1).numpy() for _, rewards in found])
    design_PK = np.concatenate([np.ones((SIZE, 1)), standardised(feature_PD)], 1)
    ridge = np.diag([0.1, 1.0, 1.0])
    exact = logistic(design_PK @ posterior_mode(np.zeros(3), ridge, design_PK[rows], target_Q, np.full(len(rows), 4.0)))
    assert np.abs(predictions(predictor, step=30) - exact).max() < 0.01
    linear, curvature = np.zeros(3), np.zeros((3, 3))
    for index in range(30):
        part = slice(index * STEP_PROMPTS, (index + 1) * STEP_PROMPTS)
        seen = design_PK[rows[part]], target_Q[part], np.full(STEP_PROMPTS, 4.0)
        slope, bend = expansion(posterior_mode(linear, curvature + ridge, *seen), *seen)
        linear, curvature = linear + slope, curvature + bend
    wrong = logistic(design_PK @ np.linalg.solve(curvature + ridge, linear))
    assert np.abs(wrong - exact).max() > 0.1


def test_the_discount_follows_a_policy_that_improves():
    """The wrong twin never forgets."""
    feature_PD = features()
    before, after = rates(feature_PD, TRUE_K - [1.5, 0, 0]), rates(feature_PD, TRUE_K * [1, 1, -1] + [1.5, 0, 0])
    error = {}
    for discount in (0.9, 1.0):
        predictor = taught(DifficultyPredictor(feature_PD, discount=discount), blocks(before, 40))
        taught(predictor, blocks(after, 24, seed=2), first=40)
        error[discount] = np.abs(predictions(predictor, step=64) - after).mean()
    assert error[0.9] < 0.08 < 0.15 < error[1.0]


def test_functions_are_learned_apart_each_in_its_range():
    feature_PD = features()
    both = DifficultyPredictor(feature_PD, ranges=[(0.0, 1.0), (-2.0, 6.0)])
    alone = [DifficultyPredictor(feature_PD), DifficultyPredictor(feature_PD)]
    for step, (rows, rewards) in enumerate(blocks(rates(feature_PD), 8)):
        second_N = torch.from_numpy((generator(7, Purpose.CHECK, step).random(len(rewards)) < 0.3).astype(np.float64))
        pair = torch.stack([rewards.reward_NF[:, 0], -2 + 8 * second_N], 1)
        both.update(rows, Rewards.in_groups(pair, GROUP), step)
        alone[0].update(rows, rewards, step)
        alone[1].update(rows, Rewards.in_groups(second_N[:, None], GROUP), step)
    found_PF = both.predict(np.arange(SIZE), 8)
    np.testing.assert_array_equal(found_PF[:, 0].numpy(), predictions(alone[0], 8))
    np.testing.assert_allclose(found_PF[:, 1].numpy(), -2 + 8 * predictions(alone[1], 8), rtol=0, atol=1e-12)


# Resuming.


def test_a_resumed_run_goes_on_bit_by_bit(tmp_path):
    feature_PD = features()
    found = list(blocks(rates(feature_PD), 12))
    through = taught(DifficultyPredictor(feature_PD), found[:6])
    through.save(tmp_path / "p.npz")
    resumed, forgetful = DifficultyPredictor(feature_PD), DifficultyPredictor(feature_PD)
    resumed.load(tmp_path / "p.npz")  # the wrong twin starts anew
    for predictor in (through, resumed, forgetful):
        taught(predictor, found[6:], first=6)
    every = np.arange(SIZE)
    assert torch.equal(through.predict(every, 12), resumed.predict(every, 12)) and resumed.step == 11
    assert not torch.equal(through.predict(every, 12), forgetful.predict(every, 12))


def test_what_was_learned_outlives_a_dataset_that_grew(tmp_path):
    """Coefficients are of features as first standardised. By the mean of the grown dataset is the wrong twin."""
    feature_PD = features()
    predictor = taught(DifficultyPredictor(feature_PD), blocks(rates(feature_PD), 12))
    predictor.save(tmp_path / "p.npz")
    grown = DifficultyPredictor(np.concatenate([feature_PD, 5 + features(8)]))
    grown.load(tmp_path / "p.npz")
    np.testing.assert_array_equal(predictions(grown, 12)[:SIZE], predictions(predictor, 12))
    wrong = standardised(np.concatenate([feature_PD, 5 + features(8)]))[:SIZE]
    assert np.abs(wrong - standardised(feature_PD)).max() > 1


def test_files_that_do_not_fit_are_refused(tmp_path):
    path, feature_PD = tmp_path / "p.npz", features()
    predictor = DifficultyPredictor(feature_PD)
    with refused(CheckpointError, path):
        predictor.load(path)
    predictor.save(path)
    for other in (DifficultyPredictor(features(width=3)), DifficultyPredictor(feature_PD, ranges=[(0, 2)])):
        with refused(CheckpointError, "2 features"):
            other.load(path)
    whole = path.read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], b""):
        path.write_bytes(damaged)
        with refused(CheckpointError, "damaged"):
            predictor.load(path)


def test_settings_out_of_range_are_named_together():
    with refused(ConfigError, "ranges=", "discount=0", "ridge=-1"):
        DifficultyPredictor(features(), ranges=[(1.0, 0.0)], discount=0, ridge=-1)
    for ranges in ([], [(0, 1, 2)], [(0, float("inf"))], [("a", "b")], [0.5], [(True, 2)]):
        with refused(ConfigError, "ranges="):
            DifficultyPredictor(features(), ranges=ranges)


def test_rewards_outside_the_declared_range_are_refused_and_nothing_is_learned():
    predictor = DifficultyPredictor(features(), ranges=[(0.0, 1.0), (-1.0, 1.0)])
    pair = torch.tensor([[0.5, 0.0], [1.0, -1.5]])
    with refused(RewardError, "completion 1", -1.5, "function 1"):
        predictor.update([3], Rewards.in_groups(pair, 2), 0)
    assert predictor.step == -1 and (predictor.predict([3], 0) == torch.tensor([[0.5, 0.0]])).all()
    sums = torch.tensor([[0.1 + 0.2 + 0.7, 1.0], [1 + 1e-7, 0.0]], dtype=torch.float32)
    predictor.update([3], Rewards.in_groups(sums, 2), 0)
    assert predictor.step == 0
