"""GRPO: golden advantages, its clipping, and what is dropped for nothing."""

import pytest
import torch
from one_step import kept, loss_of, ratio_loss, rewards_of, step_of

from dppo.context import NOTHING_KNOWN
from dppo.methods import METHODS

UNBIASED = {"grpo": True}
GRPO = METHODS["grpo"]


def test_golden_advantages():
    got = GRPO.advantages(rewards_of([1, 0, 0, 0, 0, 0, 0, 0], [2, 1, 0, 3], [1, 1]), NOTHING_KNOWN)
    expected = [2.474174] + [-0.353453] * 7 + [0.387268, -0.387268, -1.161805, 1.161805] + [0, 0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=6e-7)


def test_ratios_are_clipped_at_a_fifth():
    assert ratio_loss(GRPO, 1.0, 1.0) == pytest.approx(-1.2, abs=1e-12)
    assert ratio_loss(GRPO, -1.0, -1.0) == pytest.approx(0.8, abs=1e-12)
    assert ratio_loss(GRPO, 0.1, 1.0) == pytest.approx(-1.1051709), "inside nothing is"


def test_a_completion_counts_by_its_mean_and_a_flat_group_is_dropped_but_counted():
    """Advantages of groups of three and two sum to 0 each: weighted by tokens instead they would not."""
    plan = step_of(GRPO, [1, 0, 1], [0.5, 0.5, 0.5], [3, 1])
    assert kept(plan) == [0, 1, 2, 6, 7] and plan.denominator == 8
    assert loss_of(GRPO, plan) == pytest.approx(0, abs=1e-15)
    tokens = METHODS["dapo_loss"]
    assert abs(loss_of(tokens, step_of(tokens, [1, 0, 1], [0.5, 0.5, 0.5], [3, 1]))) > 0.1


def test_nothing_is_drawn():
    plan = step_of(GRPO, [1, 0, 0], [0, 1, 5], seed=1)
    assert set(plan.prob_UN.flatten().tolist()) == set(plan.weight_UN.flatten().tolist()) == {1.0}
    assert not GRPO.biases(4)
