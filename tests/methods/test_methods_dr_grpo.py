"""Dr. GRPO: no division by the deviation or the length."""

from dataclasses import replace

import pytest
import torch
from one_step import lengths, loss_of, step_of
from tiny_policy import GRPO_BY_HAND, TOTAL_N, centred

from dppo.methods import METHODS

UNBIASED = {"dr_grpo": True}
BY_HAND = {"dr_grpo": replace(GRPO_BY_HAND, advantage_N=centred(TOTAL_N), divided="dr_grpo")}
DR_GRPO = METHODS["dr_grpo"]
GROUPS = ([2.0, 1.0, 0.0, 3.0], [1.0, 0.0])


def test_the_loss_is_the_token_sum_over_completions_times_the_longest():
    advantage_N = torch.tensor([0.5, -0.5, -1.5, 1.5, 0.5, -0.5], dtype=torch.float64)
    by_hand = -(advantage_N * lengths(6)).sum().item() / (6 * 9)
    assert loss_of(DR_GRPO, step_of(DR_GRPO, *GROUPS)) == pytest.approx(by_hand, abs=1e-12)
    grpo = METHODS["grpo"]
    assert abs(loss_of(grpo, step_of(grpo, *GROUPS)) - by_hand) > 0.01
