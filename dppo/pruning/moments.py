"""Moments of each prompt's past rewards: decayed counts, sums and squares of each reward function."""

import numpy as np
import torch

from dppo.context import Expected
from dppo.errors import ShapeError
from dppo.groups import group_sums
from dppo.types import Rewards

PRIOR_DECAY = 0.95
"""Decay of the moments of all prompts with every step."""
COUNT, TINY = 0, 1e-12


class RewardMoments:
    """Decayed moments of every reward function for each prompt: 12 bytes per prompt and function.

    Rewards of 0 and 1 make them the counts of a Beta distribution; other rewards need the squares.
    """

    def __init__(self, size: int) -> None:
        self.prompt = np.zeros((3, size, 0), np.float32)
        """(3, size, F) decayed count, sum and squares of the rewards of each prompt."""
        self.total = np.zeros((3, 0))
        """(3, F) moments of all prompts, decayed with every step."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.prompt.nbytes + self.total.nbytes

    def begin(self, functions: int) -> None:
        """Decay the moments of all prompts, and make room for the reward functions at the first step."""
        if not self.total.shape[1]:
            self.prompt = np.zeros((3, self.prompt.shape[1], functions), np.float32)
            self.total = np.zeros((3, functions))
        if self.total.shape[1] != functions:
            raise ShapeError(
                f"the history has rewards of {self.total.shape[1]} functions; now there are {functions}. Use the "
                "reward functions of the run's start, or start a new run."
            )
        self.total *= PRIOR_DECAY

    def observe(self, row: np.ndarray, moments: np.ndarray, decay: float) -> None:
        """Record groups of different prompts."""
        self.prompt[:, row] = self.prompt[:, row] * np.float32(decay) + moments.astype(np.float32)
        self.total += moments.sum(1)

    def prior(self, size: int, strength: float) -> Expected | None:
        """Expected rewards of ``size`` prompts without a visit: the recent mean of all; None before the first one."""
        if not self.total.any():
            return None
        _, mean_F, square_F = torch.from_numpy(self.total / np.maximum(self.total[COUNT], TINY))
        return Expected(
            mean_QF=mean_F.repeat(size, 1),
            variance_QF=(square_F - mean_F.square()).clamp_min(0.0).repeat(size, 1),
            strength_QF=(torch.from_numpy(self.total[COUNT] > 0) * (strength + 1.0)).repeat(size, 1),
        )

    def expected(self, row: np.ndarray, fading: np.ndarray, prior: Expected) -> Expected:
        """Expected rewards of prompts: the prior, updated by each prompt's own moments times ``fading``.

        With rewards of 0 and 1 and a Beta prior, mean and variance are those of the Beta distribution updated by the
        decayed counts of right and wrong. Its strength is ``a + b + 1``, and ``variance / strength`` is the variance of
        the mean. Other rewards have the same mean, and a variance from their squares.
        """
        if not self.total.any():
            return prior
        count_QF, sum_QF, square_QF = torch.from_numpy(self.prompt[:, row].astype(np.float64) * fading[:, None])
        before_QF = (prior.strength_QF - 1).clamp_min(TINY)
        known_QF = before_QF + count_QF
        mean_QF = (before_QF * prior.mean_QF + sum_QF) / known_QF
        square_QF = (before_QF * (prior.variance_QF + prior.mean_QF.square()) + square_QF) / known_QF
        return Expected(
            mean_QF=mean_QF,
            variance_QF=(square_QF - mean_QF.square()).clamp_min(0.0),
            strength_QF=(known_QF > TINY) * (known_QF + 1),  # 0 for a function that has not scored yet
        )


def moments_of(rewards: Rewards) -> np.ndarray:
    """(3, Q, F) count, sum and squares of the rewards of each group, without missing ones."""
    reward_NF = rewards.reward_NF.double()
    known_NF = (~reward_NF.isnan()).double()
    filled_NF = reward_NF.nan_to_num(0.0)
    parts = [group_sums(value_NF, rewards.group_N) for value_NF in (known_NF, filled_NF, filled_NF.square())]
    return torch.stack(parts).numpy()
