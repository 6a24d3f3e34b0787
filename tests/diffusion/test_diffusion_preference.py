"""DGPO's loss by the paper's formula, and over every draw of pictures: the pruned gradient is that of whole groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import rewards_of, tensor
from dgpo import EVERY_SAMPLE, GroupPreference, plan_samples
from refusals import refused

from dppo.errors import ConfigError, DataError, ShapeError
from dppo.objective import group_advantages
from dppo.pruning import DETERMINISTIC, UNWEIGHTED, uniform
from dppo.verification.enumerate import enumerated, every_way

GROUP_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
N, BETA = 8, 3.0
ADVANTAGE_N = group_advantages(rewards_of([1.0, 0.2, 0.6, 0.6], [0.0, 1.0, 0.9, 0.1]))
_RNG = torch.Generator().manual_seed(2)
PICTURE_ND, NOISE_ND = torch.randn(2, N, 5, generator=_RNG, dtype=torch.float64)
THETA, REFERENCE = torch.randn(2, 5, 5, generator=_RNG, dtype=torch.float64) / 2
RULE = EVERY_SAMPLE.at_rate(0.5)


def rng():
    return np.random.default_rng(0)


def error(theta):
    """A denoiser of 25 parameters: the mean squared error of each picture."""
    return (PICTURE_ND @ theta - NOISE_ND).square().mean(1)


def papers_loss(theta):
    """-log sigmoid(-s) / beta, mean over groups, with the gradient going through s: no code form, no pruning."""
    margin_N = ADVANTAGE_N * (error(theta) - error(REFERENCE))
    s_Q = BETA * margin_N.view(2, 4).mean(1)
    return -torch.nn.functional.logsigmoid(-s_Q).mean() / BETA


def gradient(loss):
    theta = THETA.clone().requires_grad_()
    return torch.autograd.grad(loss(theta), theta)[0]


def planned(samples=EVERY_SAMPLE, shift=0.0, draws=None):
    preference = GroupPreference(beta=BETA, samples=samples)
    return plan_samples(preference, ADVANTAGE_N, GROUP_N, error(THETA), error(REFERENCE) + shift, draws or rng())


def loss_of(plan):
    return lambda theta: (plan.factor_N * error(theta)).sum()


def bias(samples, loss_of=loss_of):
    """Relative error of the exact mean over all draws of the gradient of ``loss_of(plan)(theta)``."""
    ways = list(every_way(lambda tape: planned(enumerated(samples), draws=tape)))
    assert len(ways) > 4 or not samples.rate
    wanted = gradient(papers_loss)
    return ((sum(chance * gradient(loss_of(plan)) for plan, chance in ways) - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("samples", [*map(EVERY_SAMPLE.at_rate, (0.0, 0.3, 0.5, 0.8)), replace(RULE, rule=uniform)])
def test_the_gradient_is_that_of_the_papers_loss_on_whole_groups_over_every_draw(samples):
    assert bias(samples) < 1e-12
    assert planned(samples).loss == pytest.approx(BETA * papers_loss(THETA).item())


def sigmoid_of_minus_s(plan):
    return loss_of(replace(plan, margin_Q=-plan.margin_Q))


def kept_alone(plan):
    """Its sigmoid is of an estimate: s from the pictures drawn, each by its weight."""
    margin_N = plan.draw.weight_N * ADVANTAGE_N * (error(THETA) - error(REFERENCE))
    return loss_of(replace(plan, margin_Q=BETA * margin_N.view(2, 4).mean(1)))


def mean_over_kept(plan):
    """Wrong twin: the loss is a mean over the units that are kept."""
    one_N = plan.draw.keep_N.double()
    return loss_of(replace(plan, draw=replace(plan.draw, weight_N=one_N / one_N.mean().clamp_min(1 / N))))


@pytest.mark.parametrize(
    ("wrong", "samples"), [(sigmoid_of_minus_s, EVERY_SAMPLE), (kept_alone, RULE), (mean_over_kept, RULE)]
)
def test_wrong_twins_are_biased(wrong, samples):
    assert bias(samples, wrong) > 1e-2


def test_a_group_by_hand():
    """s = 10 * (1 * -0.1 + -1 * 0.1) / 2 = -1, so w = 1 / (1 + e)."""
    one, group_N, error_N = tensor([1.0, -1.0]), torch.zeros(2).long(), tensor([0.2, 0.4])
    plan = plan_samples(GroupPreference(beta=10.0), one, group_N, error_N, tensor([0.3, 0.3]), rng())
    assert plan.preference_Q.item() == pytest.approx(1 / (1 + np.e))
    assert plan.factor_N.tolist() == pytest.approx([0.13447071, -0.13447071])
    there = plan_samples(GroupPreference(), one, group_N, error_N, error_N, rng())
    assert there.preference_Q.item() == 0.5 and there.loss == pytest.approx(np.log(2))
    assert replace(plan, margin_Q=torch.full_like(plan.margin_Q, 50.0)).loss == pytest.approx(50.0)


def test_what_all_pictures_of_a_group_have_in_common_cancels():
    shifted = planned(shift=tensor([0.7, -0.3])[GROUP_N])
    torch.testing.assert_close(shifted.preference_Q, planned().preference_Q)


def test_pictures_without_an_advantage_are_left_out_and_the_score_is_the_root_of_the_error():
    flat, error_N = tensor([0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 1.0, -1.0]), tensor([1.0, 1, 1, 1, 4, 4, 1, 1])
    preference = GroupPreference(samples=EVERY_SAMPLE.at_rate(0.25))
    plan = plan_samples(preference, flat, GROUP_N, error_N, error_N, rng())
    assert plan.draw.prob_N.tolist() == pytest.approx([0, 0, 0, 0, 1, 1, 0.5, 0.5])
    assert (plan.factor_N[:4] == 0).all() and int(plan.draw.keep_N.sum()) == 3


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"group_N": torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])}, DataError, "[3, 5]"),
        ({"error_N": torch.full((N,), torch.nan)}, DataError, "learning rate"),
        ({"ref_error_N": torch.ones(3)}, ShapeError, "(3,)"),
    ],
)
def test_numbers_that_do_not_belong_together_are_errors(change, error, named):
    given = dict(advantage_N=ADVANTAGE_N, group_N=GROUP_N, error_N=torch.ones(N), ref_error_N=torch.ones(N))
    with refused(error, named):
        plan_samples(GroupPreference(), **(given | change), rng=rng())


def test_a_beta_that_is_not_above_0_and_samples_without_their_weights_are_refused():
    for beta in (0.0, -1.0, float("nan")):
        with refused(ConfigError, "beta=100.0"):
            GroupPreference(beta=beta)
    for change in ({"weighting": UNWEIGHTED}, {"design": DETERMINISTIC}):
        with refused(ConfigError, "samples"):
            GroupPreference(samples=replace(RULE, **change))
