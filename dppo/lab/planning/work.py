"""Expected completions, tokens and noise of one optimizer step under each option.

Each combination of a pass rate, a history and a group is a cell with an expected number of groups; everything else is a
sum over cells. Probabilities of being kept are those of ``dppo.pruning``.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import comb

from dppo.lab.planning.records import Option, Step, Work
from dppo.lab.planning.workload import Workload
from dppo.pruning import Budget
from dppo.pruning.probabilities import inclusion_probabilities

TINY = 1e-12
"""Fewer units than that are none, and scores that much below the largest are rounding."""
UNPRUNED = Option(name="unpruned")
"""All completions of all prompts: noise is measured in units of its second moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """X sorts of groups that are rolled out, each with its right and its wrong completions."""

    groups_X: np.ndarray
    """(X,) expected groups of a step."""
    members_2X: np.ndarray
    """(2, X) right and wrong completions of such a group."""
    tokens_2X: np.ndarray
    """(2, X) tokens of each."""
    score_2X: np.ndarray
    """(2, X) root of a completion's second moment, times the weight of its prompt; 0 without a gradient."""

    @property
    def count_2X(self) -> np.ndarray:
        """(2, X) expected completions of a step."""
        return self.groups_X * self.members_2X

    @property
    def live_2X(self) -> np.ndarray:
        """(2, X) True if there are such completions, and they have a gradient."""
        return (self.score_2X > 0) & (self.members_2X > 0)

    def moment(self, prob_2X: np.ndarray) -> float:
        """Second moment of a step's gradient if each is kept with its probability."""
        scored_2X = self.score_2X > 0
        return float((self.count_2X * self.score_2X**2)[scored_2X] @ (1 / prob_2X[scored_2X]))


def work_of(workload: Workload, step: Step, option: Option) -> Work:
    """Expected work of a step under an option; prompts are pruned as if all of them had a history."""
    cells = cells_of(workload, step, option)
    prob_2X = kept(cells, option, step)
    count_2X, whole = cells.count_2X, full_moment(workload, step)
    # A cell without completions of one kind has a score for them, and no probability.
    known_2X = np.where((cells.score_2X > 0) & (prob_2X == 0), 1.0, prob_2X)
    kept_2X = count_2X * prob_2X
    if option.layout == "padded":
        forwarded = float(kept_2X.sum()) * workload.padded_tokens
    else:
        trunks = float(cells.groups_X @ (1 - np.prod((1 - prob_2X) ** cells.members_2X, axis=0)))
        forwarded = float((kept_2X * cells.tokens_2X).sum()) + trunks * (workload.prompt_tokens - 1)
    return Work(
        completions=float(count_2X.sum()) / step.passes,
        generated=float((count_2X * cells.tokens_2X).sum()) / step.passes,
        forwarded=forwarded,
        noise=cells.moment(known_2X) / whole if whole > 0 else 1.0,
    )


def chances(right_J: np.ndarray, size: int, rate_C: np.ndarray) -> np.ndarray:
    """(C, J) probabilities of ``right_J`` right ones among ``size`` completions, at each pass rate."""
    return comb(size, right_J) * rate_C[:, None] ** right_J * (1 - rate_C[:, None]) ** (size - right_J)


def advantages(size: int, scaled: str) -> np.ndarray:
    """(2, J) advantages of right and of wrong completions by the right ones in a group of ``size``.

    The baseline is the mean of the siblings: under it the expected gradient is the same for every size.
    ``scaled="group"`` divides by the deviation of the group.
    """
    if size == 1:
        return np.zeros((2, 2))
    right_J, others = np.arange(size + 1), size - 1
    advantage_2J = np.array([[1.0], [0.0]]) - np.clip(np.stack([(right_J - 1) / others, right_J / others]), 0, 1)
    advantage_2J[np.abs(advantage_2J) < TINY] = 0.0
    if scaled == "group":
        deviation_J = np.sqrt(right_J * (size - right_J) / (size * others))
        advantage_2J = advantage_2J / np.where(deviation_J > 0, deviation_J, 1.0)
    return advantage_2J


def cells_of(workload: Workload, step: Step, option: Option) -> Cells:
    """Every sort of group of a step under an option. A history holds G earlier completions of its prompt."""
    earlier = step.generations if option.prompt_rate > 0 else 0
    share_CW = chances(np.arange(earlier + 1), earlier, workload.rate_C) / len(workload.rate_C)
    square_2J, chance_CJ, member_2J, value_C = _groups(workload, step)
    count_CW = step.prompts * share_CW
    count_W = count_CW.sum(0)
    there_W = count_W > TINY * count_W.sum()
    value_W = value_C @ count_CW / np.where(there_W, count_W, 1.0)  # that the history makes one expect
    prob_W = probabilities(np.where(there_W, count_W, 0.0), np.sqrt(value_W), option.prompt_rate, step.floor)
    groups_CWJ = (count_CW * prob_W)[:, :, None] * chance_CJ[:, None]
    there_CWJ = groups_CWJ > TINY * step.prompts

    def of_cells(value_2CWJ: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value_2CWJ, (2, *groups_CWJ.shape))[:, there_CWJ]

    return Cells(
        groups_X=groups_CWJ[there_CWJ],
        members_2X=of_cells(member_2J[:, None, None]).astype(float),
        tokens_2X=of_cells(workload.tokens_2[:, None, None, None]),
        score_2X=of_cells(np.sqrt(square_2J)[:, None, None] / prob_W[:, None]),
    )


def kept(cells: Cells, option: Option, step: Step) -> np.ndarray:
    """(2, X) probability of each completion to be forwarded with a gradient."""
    live_2X = (cells.members_2X > 0) if step.every else cells.live_2X
    prob_2X = np.full(live_2X.shape, 1.0 if option.forwarded == "all" else 0.0)
    count_N, score_N = cells.count_2X[live_2X], cells.score_2X[live_2X]
    prob_2X[live_2X] = probabilities(count_N, score_N, option.completion_rate, step.floor, step.least)
    return prob_2X


def probabilities(
    count_N: np.ndarray, score_N: np.ndarray, rate: float, floor: float, least: float | None = None
) -> np.ndarray:
    """(N,) probabilities proportional to scores, of units that count ``count_N`` times; 1 if none is dropped.

    ``rate`` is the share of units to drop, ``floor`` the lowest probability of one of mean score, or half of what is
    kept if that is smaller, and ``least`` that of one of score 0; None for the same.
    """
    prob_N, there_N = np.ones(len(count_N)), count_N > 0
    if rate and there_N.any():
        count, score = (each_N[there_N].astype(np.float64) for each_N in (count_N, score_N))
        floor = min(floor, (1 - rate) / 2)
        budget = Budget(rate=rate, floor=floor, least=None if least is None else min(least, floor))
        arrays = score * np.sqrt(count), budget.floors(score, count), count
        size_N, floor_N, cost_N = (torch.from_numpy(each) for each in arrays)
        spent = (1 - rate) * float(count.sum())
        prob_N[there_N] = inclusion_probabilities(size_N, spent, floor=floor_N, cost_N=cost_N).numpy()
    return prob_N


def _groups(workload: Workload, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Groups by their J - 1 right completions.

    (2, J) second moments of a completion, (C, J) chances of a group, (2, J) right and wrong completions in it,
    and (C,) second moments of a group.
    """
    size, right_J = step.generations, np.arange(step.generations + 1)
    square_2J = advantages(size, step.scaled) ** 2 * workload.tokens_2[:, None] ** step.token_power
    chance_CJ, member_2J = chances(right_J, size, workload.rate_C), np.stack([right_J, size - right_J])
    return square_2J, chance_CJ, member_2J, chance_CJ @ (member_2J * square_2J).sum(0)


@functools.lru_cache(maxsize=256)  # every resample of a plan is asked for under each of its options
def full_moment(workload: Workload, step: Step) -> float:
    """Second moment of the gradient of a step that prunes nothing; 0 if no group has a gradient."""
    cells = cells_of(workload, step, UNPRUNED)
    return cells.moment(np.ones_like(cells.score_2X))
