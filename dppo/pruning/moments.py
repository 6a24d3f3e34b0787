"""What past completions say about each prompt's rewards: decayed counts, sums and squares of each reward function."""

import numpy as np
import torch

from dppo.context import Expected
from dppo.errors import ShapeError
from dppo.groups import group_sums
from dppo.types import Rewards

PRIOR_DECAY = 0.95
"""What all completions before a step count against those after it, in the mean over all prompts."""
COUNT, TINY = 0, 1e-12


class RewardMoments:
    """Decayed moments of every reward function for each prompt, 12 bytes for each of them.

    Rewards of 0 and 1 make them the counts of a Beta distribution; other rewards need the squares.
    """

    def __init__(self, size: int) -> None:
        self.prompt = np.zeros((3, size, 0), np.float32)
        """(3, size, F) decayed count, sum and squares of the rewards of each prompt."""
        self.total = np.zeros((3, 0))
        """(3, F) the same of all prompts, decayed with every step."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.prompt.nbytes + self.total.nbytes

    def begin(self, functions: int) -> None:
        """Make room for what is observed next, and let all that was observed before count less in the prior."""
        if not self.total.shape[1]:
            self.prompt = np.zeros((3, self.prompt.shape[1], functions), np.float32)
            self.total = np.zeros((3, functions))
        if self.total.shape[1] != functions:
            raise ShapeError(
                f"the history has rewards of {self.total.shape[1]} functions, and there are {functions} now. Use "
                "the reward functions the run began with, or start a new run."
            )
        self.total *= PRIOR_DECAY

    def observe(self, row: np.ndarray, moments: np.ndarray, decay: float) -> None:
        """Record groups of different prompts."""
        self.prompt[:, row] = self.prompt[:, row] * np.float32(decay) + moments.astype(np.float32)
        self.total += moments.sum(1)

    def prior(self, size: int, strength: float) -> Expected | None:
        """What is expected of prompts that nothing is known of: the mean of the latest completions of all prompts.

        Returns:
            None before the first completion.
        """
        if not self.total.any():
            return None
        _, mean_F, square_F = torch.from_numpy(self.total / np.maximum(self.total[COUNT], TINY))
        return Expected(
            mean_QF=mean_F.repeat(size, 1),
            variance_QF=(square_F - mean_F.square()).clamp_min(0.0).repeat(size, 1),
            strength_QF=(torch.from_numpy(self.total[COUNT] > 0) * (strength + 1.0)).repeat(size, 1),
        )

    def expected(self, row: np.ndarray, fading: np.ndarray, prior: Expected) -> Expected:
        """What prompts are expected to give next: the prior, moved by what each of them has given.

        With rewards of 0 and 1 and a prior of a Beta distribution, mean and variance are those of the distribution
        updated by the decayed counts of right and wrong: ``worth`` is ``a + b + 1``, and ``variance / worth`` the
        variance of the mean. Other rewards weigh the mean alike, and their variance comes from their squares.
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
            strength_QF=(known_QF > TINY) * (known_QF + 1),  # a function that has not scored yet is worth nothing
        )


def moments_of(rewards: Rewards) -> np.ndarray:
    """(3, Q, F) count, sum and squares of the rewards of each group, those that a function did not give left out."""
    reward_NF = rewards.reward_NF.double()
    known_NF = (~reward_NF.isnan()).double()
    filled_NF = reward_NF.nan_to_num(0.0)
    parts = [group_sums(value_NF, rewards.group_N) for value_NF in (known_NF, filled_NF, filled_NF.square())]
    return torch.stack(parts).numpy()
