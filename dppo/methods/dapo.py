"""DAPO, arXiv:2503.14476: a mean over tokens, a wider upper clip, and rollouts until enough groups have a signal."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from dppo.groups import group_sizes
from dppo.methods.method import Objective, Scheme
from dppo.objective import DAPO_TOKENS, clipped_surrogate
from dppo.pruning import Rounds
from dppo.types import Rewards


def has_variance(rewards: Rewards) -> Tensor:
    """True, (Q,), for groups whose rewards differ (DAPO, section 3.2), and for groups of one with a reward (code)."""
    single_Q = group_sizes(rewards.group_N) == 1
    return ~rewards.zero_variance_Q | (single_Q & ~rewards.mean_Q.isnan())


_PAPER = "arXiv:2503.14476, DAPO: An Open-Source LLM Reinforcement Learning System at Scale"

DAPO = Objective(
    name="dapo",
    paper=_PAPER,
    token_loss=partial(clipped_surrogate, clip_low=0.2, clip_high=0.28),
    normaliser=DAPO_TOKENS,
)
DAPO_LOSS = replace(
    DAPO,
    deviations=(
        "only the loss: no dynamic sampling, which is biased, and no length penalty, which belongs to the reward",
    ),
)

DYNAMIC_SAMPLING = Scheme(
    name="dynamic_sampling",
    paper=_PAPER,
    rounds=Rounds(counts=has_variance),
    deviations=(
        "a round has as many prompts as a step wants, in the paper three times as many",
        "groups count by the reward they are trained with, in the code by accuracy alone",
        "the length penalty belongs to the reward: trl.rewards.get_soft_overlong_punishment",
    ),
)
