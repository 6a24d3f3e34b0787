"""Objectives of papers: values of their parts, and what makes each another one than its neighbours.

``test_methods_estimator.py`` compares their gradients with the formulas of ``by_hand.py``.
"""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tiny_policy as tiny
import torch
from arrays import mean, present, rewards_of, spread, tensor
from by_hand import REGRESSION, WITHIN_GROUPS_N, log_ratio
from hypothesis import given
from hypothesis import strategies as st
from one_step import kept, loss_of, step_of
from refusals import refused
from tiny_policy import GRPO_BY_HAND, TOTAL_N, at_rates, expectation, full_gradient, relative_error

from dppo.context import NOTHING_KNOWN, Expected, StepContext
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.methods.a_star_po import optimal_value, value_advantages
from dppo.methods.dapo import has_variance
from dppo.methods.gdpo import decoupled_advantages
from dppo.objective import Tokens, binary_kl, binary_tv, clipped_surrogate, divergence_ppo, group_advantages
from dppo.step import RolledOut, completions_of

GRPO, GSPO, GDPO, A_STAR, PRUNED = (METHODS[name] for name in ("grpo", "gspo", "gdpo", "a_star_po", "dppo_a_star_po"))
NAN = math.nan


def test_a_completion_counts_by_its_mean_and_a_flat_group_is_dropped_but_counted():
    """Advantages of groups of three and two sum to 0 each: weighted by tokens instead they would not."""
    groups, tokens = ([1, 0, 1], [0.5, 0.5, 0.5], [3, 1]), METHODS["dapo_loss"]
    plan = step_of(GRPO, *groups)
    assert kept(plan) == [0, 1, 2, 6, 7] and plan.sizes.denominator == 8
    assert set(plan.weight_UN.flatten().tolist()) == {0.0, 1.0} and not GRPO.biases(4)
    assert loss_of(GRPO, plan) == pytest.approx(0, abs=1e-15)
    assert abs(loss_of(tokens, step_of(tokens, *groups))) > 0.1


def test_groups_count_when_the_population_deviation_of_the_reward_they_are_trained_with_is_positive():
    """But for the rounding of a mean: taken literally, three times 0.1 has a deviation above 0."""
    groups = [1.0, 0.0, 1.0, 0.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.1], [1.0, 1.0, 1.0, 1.0, 1.0], [-2.0, -2.5]
    assert np.std([0.1] * 3) > 0
    assert has_variance(rewards_of(*groups)).tolist() == [np.std(group) > 1e-12 for group in groups]
    assert has_variance(rewards_of([[1.0, 0.0], [1.0, -0.5]], [[0.0, 0.0], [1.0, -0.5]])).tolist() == [True, True]


def test_of_gspo_loss_and_mean_are_its_own_and_advantages_are_anybodys():
    """With another normaliser the value of a completion would be summed over its tokens again."""
    assert GSPO.fixes == {"token_loss", "normaliser"} and GSPO.normaliser.per_sequence
    assert GSPO.advantages is METHODS["grpo"].advantages


@pytest.mark.parametrize("name", ["dppo_history", "dppo_history_scaled", "grpo_history"])
def test_a_group_of_one_learns_from_what_history_expected(name):
    mean_QF, variance_QF, strength_QF = (tensor([[value]]) for value in (0.25, 0.16, 3.0))
    expected = Expected(mean_QF=mean_QF, variance_QF=variance_QF, strength_QF=strength_QF)
    one = rewards_of([1.0])
    divided = 0.5 if METHODS[name].advantages.compute.__name__ == "history_scaled_advantages" else 1.0
    assert METHODS[name].advantages(one, StepContext(expected=expected)).item() == pytest.approx(0.75 / divided)
    assert METHODS["grpo"].advantages(one, NOTHING_KNOWN).item() == 0


def one(mu, pi, advantage, **given):
    """Tokens of one completion by their probabilities."""
    logp, old = (tensor([values]).log() for values in (pi, mu))
    more = {"advantage_B": tensor([advantage]), "mask_BT": torch.ones_like(logp)} | given
    return Tokens(logp_BT=logp.requires_grad_(), old_logp_BT=old, **more)


def gradient(loss, tokens):
    (found,) = torch.autograd.grad(loss(tokens).sum(), tokens.logp_BT)
    return found[0].tolist()


def test_divergences_of_known_pairs():
    """|.5 - .2| = .3, and .2 log(.2/.5) + .8 log(.8/.5) = .19274 nats; certainty is infinitely far from doubt."""
    mu, pi = tensor([[0.2, 0.5, 1.0, 0.5], [0.5, 0.5, 1.0, 1.0]]).log()
    assert binary_tv(mu, pi).tolist() == pytest.approx([0.3, 0, 0, 0.5])
    assert binary_kl(mu, pi).tolist() == pytest.approx([0.1927448, 0, 0, math.inf], abs=1e-7)
    assert binary_kl(pi, mu)[0] != pytest.approx(0.1927448, abs=1e-3), "the other way round is another divergence"


@pytest.mark.parametrize(("divergence", "pi"), [("tv", [0.34, 0.36, 0.36, 0.34]), ("kl", [0.33, 0.35, 0.36, 0.34])])
def test_only_what_is_too_far_and_goes_on_is_left_out(divergence, pi):
    """The 1st and 3rd pair are just inside of the threshold, the 2nd and 4th just outside, up and down."""
    token_loss, mu = METHODS[f"divergence_ppo_{divergence}"].token_loss, [0.2, 0.2, 0.5, 0.5]
    first, second, third, fourth = (b / a for a, b in zip(mu, pi, strict=True))
    assert gradient(token_loss, one(mu, pi, 1.0)) == pytest.approx([-first, 0, -third, -fourth])
    assert gradient(token_loss, one(mu, pi, -1.0)) == pytest.approx([first, second, third, 0])
    everything = gradient(partial(divergence_ppo, delta_low=9, delta_high=9), one(mu, pi, 1.0))
    assert everything == pytest.approx([-first, -second, -third, -fourth]), "the wrong twin has no trust region"


def test_a_rare_token_with_a_large_ratio_stays_and_its_ratio_is_capped():
    """1e-4 to 1e-3 is a ratio of 10 and moves the distribution by 0.0009: clipping drops it, this does not."""
    tokens = one([1e-4, 1e-4], [1e-3, 1e-2], 1.0)
    assert gradient(divergence_ppo, tokens) == pytest.approx([-10, -20])
    assert gradient(clipped_surrogate, tokens) == [0, 0]


def test_the_ratio_is_to_the_sampler_where_it_is_told():
    sampler = tensor([[math.log(0.25), math.nan, -0.0]])
    tokens = one([0.4, 0.4, 0.4], [0.3, 0.3, 0.3], 1.0, sampler_logp_BT=sampler, correction_B1=torch.full((1, 1), 7.0))
    assert gradient(divergence_ppo, tokens) == pytest.approx([-0.3 / 0.25, -0.3 / 0.4, -0.3])
    assert gradient(divergence_ppo, replace(tokens, sampler_logp_BT=None)) == pytest.approx([-0.3 / 0.4] * 3)


def trl_normalize_then_sum(groups, weights):
    """TRL 1.16, one number at a time; groups may differ in size."""
    totals = []
    for group in groups:
        columns = zip(*group, strict=True)
        scaled = [[(v - mean(column)) / (spread(column) + 1e-4) for v in column] for column in columns]
        for row, line in zip(group, zip(*scaled, strict=True), strict=True):
            known = [w * v for w, v in zip(weights, line, strict=True) if v == v]
            totals.append(sum(known) if present(row) else NAN)
    whitened = [(v - mean(totals)) / (spread(totals) + 1e-4) for v in totals]
    return [0.0 if v != v else v for v in whitened]


REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, NAN]), min_size=2, max_size=2)
GROUPS = st.lists(st.lists(REWARDS, min_size=1, max_size=5), min_size=1, max_size=4)


@given(groups=GROUPS, weights=st.sampled_from([[1.0, 1.0], [1.0, 0.25], [2.0, -1.0]]))
def test_it_is_trls_normalize_then_sum_on_groups_of_any_sizes_with_missing_rewards(groups, weights):
    got, wanted = decoupled_advantages(rewards_of(*groups, weights=weights)), trl_normalize_then_sum(groups, weights)
    torch.testing.assert_close(got, tensor(wanted), rtol=1e-6, atol=1e-6)


def test_without_the_check_for_flat_groups_rounding_would_become_an_advantage():
    flat, other = [[0.1, 0.0]] * 3, [[0.0, 1.0], [1.0, 0.0]]
    assert any(trl_normalize_then_sum([flat, other], [1.0, 1.0])[:3])
    assert (decoupled_advantages(rewards_of(flat, other))[:3] == 0).all()


def test_without_the_second_normalisation_pruning_prompts_would_be_exact():
    def within_groups_only(rewards, context):
        functions = [replace(rewards, reward_NF=one_N1, weight_F=None) for one_N1 in rewards.reward_NF.split(1, 1)]
        return sum(w * group_advantages(one) for w, one in zip(rewards.weight_F, functions, strict=True))

    rule = replace(GDPO.advantages, compute=within_groups_only, prompt_exact=True, reason="")
    method = at_rates(GDPO, 0.5, 0.5, advantages=rule)
    wanted = replace(GRPO_BY_HAND, advantage_N=WITHIN_GROUPS_N).gradient()
    assert not method.biases() and relative_error(expectation(method), wanted) < 1e-12


@pytest.mark.parametrize("beta", [1e-3, 0.2, 3.0])
def test_the_gradient_is_that_of_the_papers_squared_loss_over_twice_beta(beta):
    """So is that of ``REGRESSION``, to which ``test_methods_estimator`` compares the pruned gradient."""
    log_ratio_N = log_ratio(tiny.log_probs(tiny.THETA + 1e-30j * np.eye(tiny.PARAMETERS))).sum(-1)
    papers = torch.from_numpy(
        ((beta * log_ratio_N - REGRESSION.advantage_N) ** 2).mean(-1).imag / 1e-30
    )  # by complex steps
    assert relative_error(2 * beta * full_gradient(replace(A_STAR, beta=beta)), papers) < 1e-12
    assert relative_error(2 * beta * replace(REGRESSION, beta=beta).gradient(), papers) < 1e-12
    assert relative_error(2 * beta * full_gradient(replace(A_STAR, beta=beta / 2)), papers) > 1e-4


def test_a_completion_without_an_advantage_has_a_gradient_here():
    """The wrong twin drops it, as is exact for GRPO without a KL term."""
    assert (REGRESSION.advantage_N == 0).sum() == 1
    method, nonzero_N = at_rates(PRUNED, 0.0, 0.5, beta=0.2), torch.from_numpy(REGRESSION.advantage_N != 0)
    dropped = expectation(method, lambda outcome: outcome.gradients(outcome.weight_UN * nonzero_N))
    assert relative_error(expectation(method), full_gradient(method)) < 1e-12
    assert relative_error(dropped, full_gradient(method)) > 1e-3


@pytest.mark.parametrize("beta", [1e-3, 0.2])
def test_the_score_goes_by_the_beta_of_the_run(beta):
    """A fixed beta of 0.001, the paper's, would be wrong: without an advantage the score is that of the log-ratio."""
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
    assert value_advantages(some, context).tolist() == [0.75, 0.0, 0.25], "an unscored completion has none"
    left = rewards.take(torch.tensor([False, True, True]))
    assert value_advantages(left, context.take(torch.tensor([1]))).tolist() == [-0.75, 0.25]
    assert A_STAR.advantages.of_one and A_STAR.advantages.any_size
    with refused(ConfigError, "python examples/prompt_values.py CONFIG.yaml", "prompt_values: FILE"):
        A_STAR.advantages(rewards, NOTHING_KNOWN)
