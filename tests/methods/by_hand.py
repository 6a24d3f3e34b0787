"""The objective of every preset, written out by the formulas of its paper on the tiny policy."""

from dataclasses import replace

import numpy as np
import tiny_policy as tiny
from tiny_policy import DAPO_BY_HAND, GRPO_BY_HAND, GSPO_BY_HAND, TOTAL_N, by_group, centred, z_scores

from dppo.methods import METHODS


def log_ratio(logp):
    """(..., N, T) of each token to the reference, 0 behind a completion's end."""
    return (logp - tiny.REF_NT) * tiny.MASK_NT


REGRESSION = replace(
    GRPO_BY_HAND,
    advantage_N=TOTAL_N - tiny.VALUE_P[tiny.GROUP_N],
    loss=lambda logp, advantage_N1: -advantage_N1 * log_ratio(logp),
    kl=lambda logp: log_ratio(logp).sum(-1, keepdims=True) * log_ratio(logp) / 2,
    divided="luspo",
)


def by_divergence(delta, distance):
    """The loss of each token in numpy; ratio and mask are constants, so the derivative is along the logarithm alone."""

    def loss(logp, advantage_N1):
        mu, pi = np.exp(tiny.OLD_NT), np.exp(logp.real)
        further = np.where(advantage_N1 > 0, pi > mu, pi < mu)
        kept = ~(further & (distance(mu, pi) > delta))
        return -np.minimum(pi / mu, 20) * kept * advantage_N1 * logp

    return replace(DAPO_BY_HAND, loss=loss)


def kl(mu, pi):
    return mu * np.log(mu / pi) + (1 - mu) * np.log((1 - mu) / (1 - pi))


TV, KL = by_divergence(0.15, lambda mu, pi: abs(pi - mu)), by_divergence(0.05, kl)
ALIKE = {TV, KL}
"""Both leave the same tokens of the tiny policy out; ``test_methods_objectives.py`` tells them apart."""
WITHIN_GROUPS_N = sum(w * z_scores(reward_N) for w, reward_N in zip(tiny.WEIGHT_F, tiny.REWARD_NF.T, strict=True))
"""Each function's z-scores, weighted and summed: before the second normalisation, over the batch."""
DECOUPLED_N = (WITHIN_GROUPS_N - WITHIN_GROUPS_N.mean()) / (WITHIN_GROUPS_N.std(ddof=1) + 1e-4)
LEAVE_ONE_OUT_N = by_group(TOTAL_N, lambda x: x - (x.sum() - x) / (len(x) - 1))
"""Advantages without history: the baseline is the mean of the other completions, without a divisor."""
BY_PART_OF_NAME = {
    "dr_grpo": replace(GRPO_BY_HAND, advantage_N=centred(TOTAL_N), divided="dr_grpo"),
    "dapo": DAPO_BY_HAND,
    "gspo": GSPO_BY_HAND,
    "gdpo": replace(GRPO_BY_HAND, advantage_N=DECOUPLED_N),
    "divergence_ppo_tv": TV,
    "divergence_ppo_kl": KL,
    "a_star_po": REGRESSION,
    "history": replace(GRPO_BY_HAND, advantage_N=LEAVE_ONE_OUT_N),
    "cppo_trl": replace(GRPO_BY_HAND, divided="bnpo"),
}
BY_HAND = {
    name: next((by_hand for part, by_hand in BY_PART_OF_NAME.items() if part in name), GRPO_BY_HAND) for name in METHODS
}
"""Whatever a preset prunes. One without an entry has GRPO's objective, which fails for any other."""
