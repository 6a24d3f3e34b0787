"""Dr. GRPO: no division by the deviation or the length."""

from dataclasses import replace

import pytest
import torch
from one_step import lengths, loss_of, ratio_loss, rewards_of, step_of
from tiny_policy import GRPO_BY_HAND, TOTAL_N, centred

from dppo.context import NOTHING_KNOWN
from dppo.methods import METHODS

UNBIASED = {"dr_grpo": True}
BY_HAND = {"dr_grpo": replace(GRPO_BY_HAND, advantage_N=centred(TOTAL_N), divided="dr_grpo")}
DR_GRPO = METHODS["dr_grpo"]
GROUPS = ([2.0, 1.0, 0.0, 3.0], [1.0, 0.0])


def test_advantages_are_centred_rewards():
    assert DR_GRPO.advantages(rewards_of(*GROUPS), NOTHING_KNOWN).tolist() == [0.5, -0.5, -1.5, 1.5, 0.5, -0.5]


def test_the_loss_is_the_token_sum_over_completions_times_the_longest():
    advantage_N = torch.tensor([0.5, -0.5, -1.5, 1.5, 0.5, -0.5], dtype=torch.float64)
    by_hand = -(advantage_N * lengths(6)).sum().item() / (6 * 9)
    assert loss_of(DR_GRPO, step_of(DR_GRPO, *GROUPS)) == pytest.approx(by_hand, abs=1e-12)
    grpo = METHODS["grpo"]
    assert abs(loss_of(grpo, step_of(grpo, *GROUPS)) - by_hand) > 0.01


def test_rewards_on_another_scale_give_a_gradient_on_another_scale():
    """With a division by the deviation they would not."""
    doubled = [[2 * reward for reward in group] for group in GROUPS]
    for name, factor in (("dr_grpo", 2.0), ("grpo", 1.0)):
        plain, twice = (METHODS[name].advantages(rewards_of(*groups), NOTHING_KNOWN) for groups in (GROUPS, doubled))
        torch.testing.assert_close(twice, factor * plain, rtol=1e-3, atol=0)


def test_clipping_is_as_in_grpo():
    assert ratio_loss(DR_GRPO, 1.0, 1.0) == pytest.approx(-1.2, abs=1e-12)
    assert DR_GRPO.fixes == {"advantages", "normaliser"}
