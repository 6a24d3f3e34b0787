"""PODS, arXiv:2504.13818: the completions whose rewards have the largest variance are kept, with advantages anew."""

from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.methods.method import Scheme
from dppo.methods.ranking import Ranking, kept_share, largest
from dppo.objective import AdvantageRule, Statistics
from dppo.pruning import KEPT_MEAN
from dppo.types import Completions, Rewards


def above_lowest(completions: Completions) -> Tensor:
    """Advantage above the lowest one of the prompt, (N,) float64: the reward up to a shift and a scale per prompt."""
    advantage_N = completions.advantage_N.double()
    number_N = completions.group_N.unique(return_inverse=True)[1]
    lowest_Q = torch.full_like(advantage_N, torch.inf).scatter_reduce(0, number_N, advantage_N, "amin")
    return advantage_N - lowest_Q[number_N]


def widest(score_G: np.ndarray, kept: int) -> np.ndarray:
    """Places of the ``kept`` scores of largest variance: of scores [0, 1, 5, 6] and 2 kept, places 0 and 3.

    They are the i highest and the others from below; of equal variances the smallest i, of equal scores the first.
    """
    up = np.argsort(score_G, kind="stable")
    centred = score_G[up] - score_G.mean()
    total, square = (np.concatenate([[0.0], np.cumsum(value)]) for value in (centred, centred**2))
    high = np.arange(kept + 1)
    low = kept - high
    mean = (total[low] + total[-1] - total[len(up) - high]) / max(kept, 1)
    spread = square[low] + square[-1] - square[len(up) - high] - kept * mean**2
    best = int(np.argmax(spread >= spread.max() - 1e-9 * square[-1]))
    lowest = up[: kept - best]
    rest = np.setdiff1d(np.arange(len(up)), lowest)  # in the order of the index, so that ties go to the first here too
    return np.concatenate([lowest, rest[largest(score_G[rest], best)]])


def at_least_two(completions: int, dropped: Fraction) -> int:
    """``kept_share``, and 2 at least, since one alone has no variance."""
    return min(max(kept_share(completions, dropped), 2), completions)


def of_kept(rule: AdvantageRule, rewards: Rewards, context: StepContext, keep_N: Tensor) -> Tensor:
    """(N,) advantages from the rewards of kept completions alone, 0 for the others. Source: PODS."""
    return rule(rewards.only(keep_N), context)


PODS = Scheme(
    name="pods",
    paper="arXiv:2504.13818, Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning",
    completions=Ranking(
        score=above_lowest,
        choose=widest,
        count=at_least_two,
        reasons=(
            "completions with a middling reward are never kept (maximum variance), so their gradient is missing "
            "from every step",
            KEPT_MEAN.bias,
        ),
    ),
    statistics=Statistics(
        compute=of_kept,
        bias="means and deviations of advantages are those of the completions kept, which is another baseline",
    ),
    deviations=(
        "advantages come from the down-sampled group, as we understand the paper",
        "the number kept is given as a rate, and is at least 2",
        "of subsets with the same variance the one with the fewest high rewards is taken, of equal rewards the first",
    ),
)
