"""Exact bias on the policy of a few parameters: it is what methods claim, and known mistakes have known sizes."""

from dataclasses import replace

import pytest
import torch

from dppo.methods import DPPO, DPPO_THRESHOLD, METHODS
from dppo.objective import clip_fractions
from dppo.pruning import PIVOTAL, Pruning, inverse_probability, uniform, unweighted
from dppo.verification import tiny
from dppo.verification.enumerate import enumerated, every_way
from dppo.verification.tiny import exact_bias

EXACT = 1e-12
LEVELS = {"completions": (0.0, 0.5), "prompts": (0.5, 0.0), "both": (0.5, 0.5)}


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.rounds is None])
def test_the_exact_bias_agrees_with_what_a_method_says_of_itself(name, level, beta):
    prompt, completion = LEVELS[level]
    method = replace(METHODS[name], beta=beta).with_rates(prompt=prompt, completion=completion)
    assert (exact_bias(method) < EXACT) == method.unbiased


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("method", [DPPO, DPPO_THRESHOLD], ids=lambda m: m.name)
def test_draws_do_differ(method, level):
    """An expectation over a single outcome would prove nothing."""
    prompt, completion = LEVELS[level]
    method = method.with_rates(prompt=prompt, completion=completion)
    method = replace(method, prompts=enumerated(method.prompts), completions=enumerated(method.completions))
    found = list(every_way(lambda tape: tiny.pruned_gradient(method, tape)))
    assert sum(chance for _, chance in found) == pytest.approx(1.0, abs=1e-12)
    assert len(found) > 1
    spread = torch.stack([gradient for gradient, _ in found]).std(0).norm()
    assert spread > 0.1 * tiny.full_gradient(method).norm()


def test_the_policy_has_what_the_claims_are_about():
    advantage_N = DPPO.advantages(tiny.REWARD_PG).flatten()
    logp_NT = tiny._log_probs(tiny.THETA, torch.arange(tiny.N))
    clipped = clip_fractions(logp_NT, tiny.OLD_LOGP_NT, advantage_N, tiny.MASK_NT)
    assert clipped[0].any() and clipped[1].any()
    assert int((advantage_N == 0).sum()) == 4
    assert (logp_NT - tiny.REF_LOGP_NT).abs().max() > 0.1


def test_forgotten_weights_of_a_uniform_half_lose_exactly_half():
    wrong = replace(DPPO, completions=Pruning(rate=0.5, rule=uniform, weighting=unweighted))
    assert exact_bias(wrong) == pytest.approx(0.5, abs=1e-12)


def _doubled(keep_N, prob_N):
    return 2 * inverse_probability(keep_N, prob_N)


def _rounded(keep_N, prob_N):
    return inverse_probability(keep_N, prob_N).round()


SABOTAGE = {
    "weights doubled": replace(DPPO.completions, weighting=_doubled),
    "weights rounded": replace(DPPO.completions, weighting=_rounded),
    "draws with other probabilities": replace(
        DPPO.completions, design=replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob**1.01, score, rng))
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_mistakes_that_no_method_declares_are_seen(name):
    method = replace(DPPO, completions=SABOTAGE[name])
    assert method.unbiased, "it does not know"
    assert exact_bias(method) > 1e-4
