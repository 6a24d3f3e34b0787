"""A*-PO: the squared residual against a value from before training, its gradient, its pruning, and what it needs."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_policy as tiny
import torch
from arrays import rewards_of, tensor
from refusals import refused
from tiny_policy import GRPO_BY_HAND, TOTAL_N, at_rates, expectation, full_gradient, relative_error

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.methods.a_star_po import optimal_value, value_advantages
from dppo.step import RolledOut, completions_of

ADVANTAGE_N = TOTAL_N - tiny.VALUE_P[tiny.GROUP_N]
A_STAR, PRUNED = METHODS["a_star_po"], METHODS["dppo_a_star_po"]


def log_ratio(logp):
    """(..., N, T) of each token to the reference, 0 behind a completion's end."""
    return (logp - tiny.REF_NT) * tiny.MASK_NT


REGRESSION = replace(
    GRPO_BY_HAND,
    advantage_N=ADVANTAGE_N,
    loss=lambda logp, advantage_N1: -advantage_N1 * log_ratio(logp),
    kl=lambda logp: log_ratio(logp).sum(-1, keepdims=True) * log_ratio(logp) / 2,
    divided="luspo",
)
BY_HAND = dict.fromkeys(("a_star_po", "dppo_a_star_po"), REGRESSION)


@pytest.mark.parametrize("beta", [1e-3, 0.2, 3.0])
def test_the_gradient_is_that_of_the_papers_squared_loss_over_twice_beta(beta):
    """So is that of ``REGRESSION``, to which ``test_methods_estimator`` compares the pruned gradient."""
    log_ratio_N = log_ratio(tiny.log_probs(tiny.THETA + 1e-30j * np.eye(tiny.PARAMETERS))).sum(-1)
    papers = torch.from_numpy(((beta * log_ratio_N - ADVANTAGE_N) ** 2).mean(-1).imag / 1e-30)  # by complex steps
    assert relative_error(2 * beta * full_gradient(replace(A_STAR, beta=beta)), papers) < 1e-12
    assert relative_error(2 * beta * replace(REGRESSION, beta=beta).gradient(), papers) < 1e-12
    assert relative_error(2 * beta * full_gradient(replace(A_STAR, beta=beta / 2)), papers) > 1e-4


def test_a_completion_without_an_advantage_has_a_gradient_here():
    """The wrong twin drops it, as is exact for GRPO without a KL term."""
    assert (ADVANTAGE_N == 0).sum() == 1
    method, nonzero_N = at_rates(PRUNED, 0.0, 0.5, beta=0.2), torch.from_numpy(ADVANTAGE_N != 0)
    dropped = expectation(method, lambda outcome: outcome.gradients(outcome.weight_UN * nonzero_N))
    assert relative_error(expectation(method), full_gradient(method)) < 1e-12
    assert relative_error(dropped, full_gradient(method)) > 1e-3


@pytest.mark.parametrize("beta", [1e-3, 0.2])
def test_the_score_goes_by_the_beta_of_the_run(beta):
    """Not by the paper's 0.001 whatever the run says: a completion without an advantage is worth its log-ratio."""
    rolled_out = RolledOut(rewards=rewards_of(TOTAL_N[:1].tolist()), tokens_N=torch.tensor([100]))
    context = StepContext(value_Q=torch.from_numpy(TOTAL_N[:1]))
    rows = completions_of(replace(PRUNED, beta=beta), rolled_out, context)
    assert rows.advantage_N.item() == 0 and rows.live_N.item()
    assert PRUNED.score(rows).item() == pytest.approx(beta * 0.1 * 100 * 10)


def test_the_value_of_known_rewards():
    """0.5 log((e^2 + 3) / 4) = 0.47723; between the mean and the largest; of equal rewards the reward itself."""
    reward_PG = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [-3.0, 2.0, 0.0, 1.0]])
    value_P = optimal_value(reward_PG, beta=0.5)
    assert value_P.tolist() == pytest.approx([0.4772293, 0, 1, 1.3783383], abs=1e-6)
    assert (value_P >= reward_PG.mean(1) - 1e-12).all() and (value_P <= reward_PG.amax(1) + 1e-12).all()
    torch.testing.assert_close(optimal_value(reward_PG, beta=1e6), reward_PG.double().mean(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(optimal_value(reward_PG, beta=1e-6), reward_PG.double().amax(1), rtol=0, atol=1e-5)


def test_advantages_are_against_the_value_whatever_the_group_and_need_one():
    rewards, context = rewards_of([1.0], [0.0, 1.0]), StepContext(value_Q=tensor([0.25, 0.75]))
    assert value_advantages(rewards, context).tolist() == [0.75, -0.75, 0.25]
    some = rewards.only(torch.tensor([True, False, True]))
    assert value_advantages(some, context).tolist() == [0.75, 0.0, 0.25], "what nobody scored has none"
    left = rewards.take(torch.tensor([False, True, True]))
    assert value_advantages(left, context.take(torch.tensor([1]))).tolist() == [-0.75, 0.25]
    assert A_STAR.advantages.of_one and A_STAR.advantages.any_size
    with refused(ConfigError, "python examples/prompt_values.py CONFIG.yaml", "prompt_values: FILE"):
        A_STAR.advantages(rewards, NOTHING_KNOWN)
