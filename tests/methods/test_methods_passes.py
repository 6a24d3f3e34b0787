"""Beyond one gradient: several passes over one batch of rollouts, and what optimizers do to an unbiased gradient."""

from dataclasses import replace

import pytest
import torch
from tiny_policy import GRPO_BY_HAND, THETA, N, at_rates, expectation, full_gradient, planned, relative_error

from dppo.methods import METHODS

METHOD = at_rates(METHODS["dppo"], 0.0, 0.5, beta=0.2)
BY_HAND = replace(GRPO_BY_HAND, beta=0.2)
FULL = BY_HAND.gradient()
(OUTCOME,) = planned(METHOD)
FIRST_SK = OUTCOME.gradients()
"""The gradient of each outcome of the first draw."""


def moved(gradient):
    """Parameters after one step of plain gradient descent."""
    return (torch.from_numpy(THETA) - 0.5 * gradient).numpy()


def mean(value_SK):
    return OUTCOME.chance_U @ value_SK


def test_a_new_draw_makes_each_pass_unbiased_at_its_own_parameters():
    """Reusing the draw biases the second pass: parameters depend on the very rows that its gradient is made of."""
    reused_SK, wanted_SK = torch.zeros(2, *FIRST_SK.shape, dtype=torch.float64)
    for index, first_K in enumerate(FIRST_SK):
        second_NK = OUTCOME.gradients(torch.eye(N, dtype=torch.float64), theta=moved(first_K))
        reused_SK[index], wanted_SK[index] = OUTCOME.weight_UN[index] @ second_NK, BY_HAND.gradient(moved(first_K))
        assert relative_error(mean(OUTCOME.weight_UN) @ second_NK, wanted_SK[index]) < 1e-12
    assert relative_error(mean(reused_SK), mean(wanted_SK)) > 1e-2


def test_the_prompt_draw_is_shared_by_all_passes_so_only_the_first_is_for_the_whole_block():
    """Completions can be drawn anew for the second pass, prompts cannot: its parameters know which were rolled out."""
    method = at_rates(METHOD, 0.5, 0.0)
    assert relative_error(expectation(method), FULL) < 1e-12
    got = expectation(method, lambda o: o.gradients(theta=moved(o.gradients()[0])))
    wanted = expectation(method, lambda o: full_gradient(method, moved(o.gradients()[0]))[None])
    assert relative_error(got, wanted) > 1e-2


def clipped(gradient):
    """To the norm of the full gradient."""
    return gradient * (FULL.norm() / gradient.norm()).clamp(max=1)


def adam_first_step(gradient):
    """Adam's first update after bias correction, with epsilon 1e-8: the gradient over its own magnitude."""
    return gradient / (gradient.square().sqrt() + 1e-8)


@pytest.mark.parametrize("update", [clipped, adam_first_step])
def test_an_unbiased_gradient_is_not_an_unbiased_update(update):
    assert relative_error(mean(torch.stack([*map(update, FIRST_SK)])), update(FULL)) > 1e-2


def test_the_square_that_adam_keeps_grows_by_the_variance():
    """E[g^2] = (E g)^2 + Var g per parameter: pruning makes Adam's steps shorter, never longer, on this account."""
    growth = mean(FIRST_SK.square()) - FULL.square()
    assert (growth >= -1e-15).all() and growth.max() > 1e-3 * FULL.square().max()
