"""GRPO: what is dropped without changing the gradient, and that nothing is drawn."""

import pytest
from one_step import kept, loss_of, step_of

from dppo.methods import METHODS

GRPO, GROUPS = METHODS["grpo"], ([1, 0, 1], [0.5, 0.5, 0.5], [3, 1])


def test_a_completion_counts_by_its_mean_and_a_flat_group_is_dropped_but_counted():
    """Advantages of groups of three and two sum to 0 each: weighted by tokens instead they would not."""
    plan = step_of(GRPO, *GROUPS)
    assert kept(plan) == [0, 1, 2, 6, 7] and plan.sizes.denominator == 8
    assert set(plan.weight_UN.flatten().tolist()) == {0.0, 1.0} and not GRPO.biases(4)
    assert loss_of(GRPO, plan) == pytest.approx(0, abs=1e-15)
    assert abs(loss_of(METHODS["dapo_loss"], step_of(METHODS["dapo_loss"], *GROUPS))) > 0.1
