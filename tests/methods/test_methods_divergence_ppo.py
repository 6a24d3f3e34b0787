"""Divergence PPO: a token that went too far from the sampler is left out, by probabilities, not by their quotient."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import tensor
from tiny_policy import DAPO_BY_HAND, OLD_NT

from dppo.methods import METHODS
from dppo.objective import Tokens, binary_kl, binary_tv, clipped_surrogate, divergence_ppo

TV, KL = METHODS["divergence_ppo_tv"], METHODS["divergence_ppo_kl"]


def by_hand(delta, distance):
    """The loss of each token in numpy; ratio and mask are constants, so the derivative is along the logarithm alone."""

    def loss(logp, advantage_N1):
        mu, pi = np.exp(OLD_NT), np.exp(logp.real)
        further = np.where(advantage_N1 > 0, pi > mu, pi < mu)
        kept = ~(further & (distance(mu, pi) > delta))
        return -np.minimum(pi / mu, 20) * kept * advantage_N1 * logp

    return replace(DAPO_BY_HAND, loss=loss)


def kl(mu, pi):
    return mu * np.log(mu / pi) + (1 - mu) * np.log((1 - mu) / (1 - pi))


TV_BY_HAND, KL_BY_HAND = by_hand(0.15, lambda mu, pi: abs(pi - mu)), by_hand(0.05, kl)
BY_HAND = {name: KL_BY_HAND if name.endswith("kl") else TV_BY_HAND for name in METHODS if "divergence" in name}
ALIKE = dict.fromkeys(BY_HAND, (TV_BY_HAND, KL_BY_HAND))
"""Both leave the same tokens of the tiny policy out; the tests below tell them apart."""


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


@pytest.mark.parametrize(("method", "pi"), [(TV, [0.34, 0.36, 0.36, 0.34]), (KL, [0.33, 0.35, 0.36, 0.34])])
def test_only_what_is_too_far_and_goes_on_is_left_out(method, pi):
    """The 1st and 3rd pair are just inside of the threshold, the 2nd and 4th just outside, up and down."""
    mu = [0.2, 0.2, 0.5, 0.5]
    first, second, third, fourth = (b / a for a, b in zip(mu, pi, strict=True))
    assert gradient(method.token_loss, one(mu, pi, 1.0)) == pytest.approx([-first, 0, -third, -fourth])
    assert gradient(method.token_loss, one(mu, pi, -1.0)) == pytest.approx([first, second, third, 0])
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
