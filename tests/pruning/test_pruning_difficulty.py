"""The predictor of difficulty: it learns a known model, follows a policy, never peeks, and goes on bit by bit."""

import copy
from itertools import product

import numpy as np
import pytest
import torch

from dppo.errors import CheckpointError, DataError
from dppo.pruning import DifficultyPredictor
from dppo.pruning.difficulty import FORMAT
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


def test_before_any_reward_every_prompt_is_in_the_middle():
    predictor = DifficultyPredictor(features(), ranges=[(0.0, 1.0), (-1.0, 3.0)])
    middle_PF = torch.tensor([0.5, 1.0], dtype=torch.float64).expand(SIZE, 2)
    assert torch.equal(predictor.predict(np.arange(SIZE), 0), middle_PF) and predictor.step == -1


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


def test_old_steps_fade_with_the_clock_and_without_rewards_all_is_forgotten():
    feature_PD = features()
    predictor = taught(DifficultyPredictor(feature_PD, discount=0.9), blocks(rates(feature_PD), 10))
    distance = [np.abs(predictions(predictor, step) - 0.5).mean() for step in (10, 40, 400)]
    assert distance[0] > 0.2 and distance[0] > distance[1] > distance[2] and distance[2] < 1e-6


def test_completions_count_alike_whatever_group_they_are_in():
    feature_PD, rows = features(), np.arange(6)
    reward_QG = torch.tensor([[1.0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    whole = DifficultyPredictor(feature_PD)
    whole.update(rows, Rewards.of_groups(reward_QG), 0)
    halves = DifficultyPredictor(feature_PD)
    halves.update(rows.repeat(2), Rewards.of_groups(reward_QG.view(12, 2)), 0)
    np.testing.assert_allclose(predictions(whole), predictions(halves), rtol=0, atol=1e-9)
    uneven = Rewards(reward_NF=torch.tensor([[1.0], [0], [0], [0], [0], [0]]), group_N=torch.tensor([0, 1, 1, 1, 1, 1]))
    predictor, means = DifficultyPredictor(feature_PD), DifficultyPredictor(feature_PD)
    predictor.update(rows[:2], uneven, 0)
    means.update(rows[:2], Rewards.of_groups(torch.tensor([[1.0], [0.0]])), 0)  # the wrong twin: groups count alike
    assert np.abs(predictions(predictor, 1) - predictions(means, 1)).max() > 0.1


def test_rewards_that_are_missing_do_not_count():
    feature_PD, nan = features(), torch.nan
    some = Rewards.of_groups(torch.tensor([[1.0, nan, 0], [nan, nan, nan], [1, 1, nan]]))
    only = Rewards(reward_NF=torch.tensor([[1.0], [0], [1], [1]]), group_N=torch.tensor([0, 0, 1, 1]))
    first, second = DifficultyPredictor(feature_PD), DifficultyPredictor(feature_PD)
    first.update([4, 5, 6], some, 0)
    second.update([4, 6], only, 0)
    np.testing.assert_allclose(predictions(first), predictions(second), rtol=0, atol=1e-12)


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


def test_a_feature_that_is_the_same_everywhere_or_far_out_does_no_harm():
    feature_PD = features()
    constant = np.concatenate([feature_PD, np.full((SIZE, 1), 3.25)], 1)
    found = list(blocks(rates(feature_PD), 6))
    first, second = (predictions(taught(DifficultyPredictor(f), found), 6) for f in (feature_PD, constant))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-12)
    far = np.concatenate([feature_PD, feature_PD[:1] * 1e9])
    predictor = taught(DifficultyPredictor(far[:SIZE]), found)
    predictor.refresh(far[1:])
    assert 0 < predictions(predictor, 6)[-1] < 1


def test_the_prior_has_the_variance_of_rewards_at_the_ends_and_the_strength_it_is_given():
    predictor = DifficultyPredictor(features(), ranges=[(0.0, 1.0), (-1.0, 3.0)])
    taught(predictor, [(rows, pair_of(rewards)) for rows, rewards in blocks(rates(features()), 3)])
    prior = predictor.expected([4, 9], 3, strength=2.5)
    assert torch.equal(prior.mean_QF, predictor.predict([4, 9], 3)) and (prior.worth_QF == 3.5).all()
    share_QF = (prior.mean_QF - torch.tensor([0.0, -1.0])) / torch.tensor([1.0, 4.0])
    torch.testing.assert_close(prior.variance_QF, share_QF * (1 - share_QF) * torch.tensor([1.0, 16.0]).double())


def pair_of(rewards):
    """The same rewards, and the same from -1 to 3 turned round."""
    return Rewards.in_groups(torch.cat([rewards.reward_NF, 3 - 4 * rewards.reward_NF], 1), GROUP)


def test_the_area_is_that_of_predictions_before_the_step_averaged_over_functions():
    feature_PD, nan = features(), torch.nan
    predictor = taught(DifficultyPredictor(feature_PD), blocks(rates(feature_PD), 8))
    low, high = int(rates(feature_PD).argmin()), int(rates(feature_PD).argmax())
    right = Rewards.of_groups(torch.tensor([[0.0, nan], [1.0, 1.0]]))
    assert predictor.auc([low, high], right, 8) == 1.0 and predictor.auc([high, low], right, 8) == 0.0
    assert np.isnan(predictor.auc([low, high], Rewards.of_groups(torch.tensor([[1.0, nan], [0.9, 1.0]])), 8))
    two = DifficultyPredictor(feature_PD, ranges=[(0.0, 1.0), (-1.0, 3.0)])
    taught(two, [(rows, pair_of(rewards)) for rows, rewards in blocks(rates(feature_PD), 8)])
    assert two.auc([low, high], Rewards.in_groups(torch.tensor([[0.0, -1.0], [1.0, 3.0]]), 1), 8) == 0.5
    assert two.auc([low, high], Rewards.in_groups(torch.tensor([[0.0, -1.0], [1.0, -1.0]]), 1), 8) == 1.0


# Predictions are settled before the rollout.


def updated_before(predictor, rows, rewards, step):
    """The wrong twin of ``predict``: what the step's own rewards would make of it."""
    peeking = copy.deepcopy(predictor)
    peeking.update(rows, rewards, step)
    return peeking.predict(rows, step + 1)


def test_a_baseline_does_not_move_with_any_reward_of_its_step():
    feature_PD = features()
    predictor = taught(DifficultyPredictor(feature_PD), blocks(rates(feature_PD), 5))
    rows = np.arange(4)
    frozen = predictor.predict(rows, 5)
    peeked = set()
    for outcome in product([0.0, 1.0], repeat=4):
        rewards = Rewards.of_groups(torch.tensor(outcome)[:, None])
        assert torch.equal(predictor.predict(rows, 5), frozen)
        peeked.add(updated_before(predictor, rows, rewards, 5)[0].item())
    assert len(peeked) > 8
    predictor.update(rows, Rewards.of_groups(torch.ones(4, 1)), 5)
    with pytest.raises(DataError, match=r"step=5: a prior must not know.*predict\(rows, 6\)"):
        predictor.predict(rows, 5)
    with pytest.raises(DataError, match="step=4 comes before step 5"):
        predictor.update(rows, Rewards.of_groups(torch.ones(4, 1)), 4)


def expected_gradient(baseline):
    """Exact mean over all outcomes of two steps of one completion for each of two prompts; (2,) by the second step.

    A completion is right with the logistic chance of its prompt's parameter, and its reward is 1 then: the gradient of
    log pi is ``right - chance``, and that of the mean reward ``chance (1 - chance)``.
    """
    chance, rows = np.array([0.3, 0.8]), np.arange(2)
    total = np.zeros(2)
    for first, second in product(list(product([0, 1], repeat=2)), repeat=2):
        predictor = DifficultyPredictor(np.array([[0.0], [1.0]]))
        predictor.update(rows, Rewards.of_groups(torch.tensor(first, dtype=torch.float64)[:, None]), 0)
        right = np.array(second)
        rewards = Rewards.of_groups(torch.from_numpy(right.astype(np.float64))[:, None])
        prior = baseline(predictor, rows, rewards, 1)[:, 0].numpy()
        probability = np.prod(
            [chance**answer * (1 - chance) ** (1 - answer) for answer in map(np.array, (first, second))]
        )
        total += probability * (right - prior) * (right - chance)
    return total, chance * (1 - chance)


def test_the_expected_gradient_is_that_of_the_mean_reward():
    found, true = expected_gradient(lambda predictor, rows, rewards, step: predictor.predict(rows, step))
    np.testing.assert_allclose(found, true, rtol=1e-12)
    wrong, _ = expected_gradient(updated_before)
    assert np.abs(wrong / true - 1).min() > 0.1


# Resuming.


def refreshed(step):
    return features(20 + step)


def test_a_resumed_run_goes_on_bit_by_bit(tmp_path):
    feature_PD = features()
    found = list(blocks(rates(feature_PD), 12))
    through = taught(DifficultyPredictor(feature_PD), found[:6])
    through.refresh(refreshed(0))
    through.save(tmp_path / "p.npz")
    resumed, forgetful = DifficultyPredictor(feature_PD), DifficultyPredictor(feature_PD)
    resumed.load(tmp_path / "p.npz")
    forgetful.load(tmp_path / "p.npz")
    forgetful.refresh(feature_PD)  # the wrong twin: features as they were at the start
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
    with pytest.raises(CheckpointError, match="there is no predictor at"):
        predictor.load(path)
    predictor.save(path)
    for other in (DifficultyPredictor(features(width=3)), DifficultyPredictor(feature_PD, ranges=[(0, 2)])):
        with pytest.raises(CheckpointError, match=r"learned from 2 features and 1 reward functions"):
            other.load(path)
    predictor.refresh(feature_PD)
    predictor.save(path)
    with pytest.raises(CheckpointError, match="features of 240 prompts, and this dataset has 9"):
        DifficultyPredictor(features(size=9)).load(path)
    whole = path.read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            predictor.load(path)
    path.write_bytes(whole)
    arrays = dict(np.load(path))
    np.savez(path, **(arrays | {"format": np.int64(FORMAT + 1)}))
    with pytest.raises(CheckpointError, match=f"not of format {FORMAT}"):
        predictor.load(path)
