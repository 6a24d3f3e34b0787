"""All that can happen to a prompt, with its probability: its kind, its history, its group. All else is a sum of these.

Which prompts and completions are kept with which probability is what ``dppo.pruning`` says of such a mixture, each cell
of it with as many units as are expected.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import comb

from dppo.pruning import inclusion_probabilities
from dppo_lab.planning.records import Option, Step
from dppo_lab.planning.workload import Workload

TINY = 1e-12
"""Fewer units than that are none, and scores that much below the largest are rounding."""


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

    def moment(self, prob_2X: np.ndarray) -> float:
        """Second moment of a step's gradient where each is kept with its probability."""
        live_2X = self.score_2X > 0
        return float((self.count_2X * self.score_2X**2)[live_2X] @ (1 / prob_2X[live_2X]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Candidate prompts by kind and by how many of earlier completions were right."""

    share_CW: np.ndarray
    """(C, W) of all prompts."""
    mean_W: np.ndarray
    """(W,) pass rate that such a history expects."""
    worth_W: np.ndarray
    """(W,) variance of a reward over that of the expected pass rate; infinite where that is certain."""


def chances(right_J: np.ndarray, size: int, rate_C: np.ndarray) -> np.ndarray:
    """(C, J) probabilities that so many of ``size`` completions are right.

    Args:
        right_J: (J,) from 0 to ``size``.
        size: completions, >= 0.
        rate_C: (C,) pass rates.
    """
    return comb(size, right_J) * rate_C[:, None] ** right_J * (1 - rate_C[:, None]) ** (size - right_J)


def seen(workload: Workload, earlier: int) -> Prompts:
    """The prompts, with that many earlier completions of each.

    Args:
        workload: kinds of prompts.
        earlier: completions of a prompt, >= 0.
    """
    right_W = np.arange(earlier + 1)
    share_CW = workload.share_C[:, None] * chances(right_W, earlier, workload.rate_C)
    total_W = np.maximum(share_CW.sum(0), np.finfo(float).tiny)
    mean_W = workload.rate_C @ share_CW / total_W
    spread_W = np.maximum((workload.rate_C**2) @ share_CW / total_W - mean_W**2, 0.0)
    known_W = spread_W <= TINY
    worth_W = np.where(known_W, math.inf, mean_W * (1 - mean_W) / np.where(known_W, 1.0, spread_W))
    return Prompts(share_CW=share_CW, mean_W=mean_W, worth_W=worth_W)


def advantages(prompts: Prompts, size: int, option: Option, scaled: str) -> np.ndarray:
    """(2, W, J) advantages of right and of wrong completions, by history and by right ones in the group.

    As ``dppo.objective.history_advantages`` has them: against a mix of the siblings' mean and what history expects, by
    precision. Without a history that is the group's own mean times ``size / (size - 1)``, which leaves the expected
    gradient as it is for every size.

    Args:
        prompts: with what their histories expect.
        size: completions of a group, >= 1.
        option: says what completions are compared with.
        scaled: ``group`` divides by the deviation of the group; a history's advantages never are.
    """
    right_J, others = np.arange(size + 1), max(size - 1, 1)
    siblings_2J = np.clip(np.stack([(right_J - 1) / others, right_J / others]), 0, 1)
    if option.baseline == "history":
        by_siblings_W = np.where(np.isinf(prompts.worth_W), 0.0, (size - 1) / (size - 1 + prompts.worth_W + TINY))
    else:
        by_siblings_W = np.ones_like(prompts.mean_W)
        if size == 1:
            return np.zeros((2, len(prompts.mean_W), 2))
    mixed_2WJ = by_siblings_W[:, None] * siblings_2J[:, None] + ((1 - by_siblings_W) * prompts.mean_W)[:, None]
    advantage_2WJ = np.array([1.0, 0.0])[:, None, None] - mixed_2WJ
    advantage_2WJ[np.abs(advantage_2WJ) < TINY] = 0.0
    if scaled == "group" and option.baseline == "group":
        deviation_J = np.sqrt(right_J * (size - right_J) / (size * others))
        advantage_2WJ = advantage_2WJ / np.where(deviation_J > 0, deviation_J, 1.0)
    return advantage_2WJ


def cells_of(workload: Workload, step: Step, option: Option) -> Cells:
    """Every sort of group of a step under an option.

    Args:
        workload: kinds of prompts.
        step: sizes; a history is of as many earlier completions as a group has without an option, G.
        option: how the step is taken.
    """
    size = option.group or step.generations
    remembers = option.prompt_rate > 0 or option.baseline == "history"
    prompts = seen(workload, step.generations if remembers else 0)
    square_2CWJ = _squares(workload, step, advantages(prompts, size, option, step.scaled))
    right_J = np.arange(size + 1)
    member_2J = np.stack([right_J, size - right_J])
    chance_CJ = chances(right_J, size, workload.rate_C)
    total = step.prompts * step.generations / size
    value_CW = np.einsum("kj,aj,akhj->kh", chance_CJ, member_2J, square_2CWJ)
    prob_W = _prompt_probabilities(total * prompts.share_CW, value_CW, option.prompt_rate, step.floor)
    groups_CWJ = total * (prompts.share_CW * prob_W)[:, :, None] * chance_CJ[:, None]
    score_2CWJ = np.sqrt(square_2CWJ) / prob_W[:, None]
    shape = (2, *groups_CWJ.shape)
    tokens_2CWJ = np.broadcast_to(workload.tokens_2C[:, :, None, None], shape)
    there_X = groups_CWJ.ravel() > TINY * total
    member_2CWJ = np.broadcast_to(member_2J[:, None, None], shape)
    return Cells(
        groups_X=groups_CWJ.ravel()[there_X],
        members_2X=member_2CWJ.reshape(2, -1)[:, there_X].astype(float),
        tokens_2X=tokens_2CWJ.reshape(2, -1)[:, there_X],
        score_2X=score_2CWJ.reshape(2, -1)[:, there_X],
    )


def probabilities(count_N: np.ndarray, score_N: np.ndarray, rate: float, floor: float) -> np.ndarray:
    """(N,) probabilities proportional to scores, for cells of ``count`` equal units each; 1 where none is dropped.

    Args:
        count_N: (N,) units of each cell, > 0.
        score_N: (N,) of each unit, >= 0.
        rate: share of the units to drop, in [0, 1).
        floor: lowest probability; half of what is kept where that is smaller.
    """
    if not rate or not len(count_N):
        return np.ones(len(count_N))
    floor, budget, sized_N = min(floor, (1 - rate) / 2), (1 - rate) * float(count_N.sum()), score_N > 0
    sized, unsized = float(count_N[sized_N].sum()), float(count_N[~sized_N].sum())
    if budget - floor * unsized >= sized:  # all that matter are kept, and what is left over goes to the others alike
        return np.where(sized_N, 1.0, max((budget - sized) / max(unsized, TINY), floor))
    count, size = torch.from_numpy(count_N), torch.from_numpy(score_N * np.sqrt(count_N))
    return inclusion_probabilities(size, budget, floor=floor, cost_N=count).numpy()


def prompt_values(workload: Workload, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(W,) prompts of each history, second moment of such a group, and its tokens, where nothing is pruned.

    Args:
        workload: kinds of prompts.
        step: sizes.
    """
    option = Option(name="all")
    prompts, right_J = seen(workload, step.generations), np.arange(step.generations + 1)
    square_2CWJ = _squares(workload, step, advantages(prompts, step.generations, option, step.scaled))
    chance_CJ = chances(right_J, step.generations, workload.rate_C)
    member_2J = np.stack([right_J, step.generations - right_J])
    value_CW = np.einsum("kj,aj,akhj->kh", chance_CJ, member_2J, square_2CWJ)
    tokens_C = step.generations * (
        workload.rate_C * workload.tokens_2C[0] + (1 - workload.rate_C) * workload.tokens_2C[1]
    )
    total_W = prompts.share_CW.sum(0)
    there_W = total_W > TINY
    value_W, tokens_W = (prompts.share_CW * value_CW).sum(0), tokens_C @ prompts.share_CW
    total_W, value_W, tokens_W = (each_W[there_W] for each_W in (total_W, value_W, tokens_W))
    return total_W, value_W / total_W, tokens_W / total_W


def _squares(workload: Workload, step: Step, advantage_2WJ: np.ndarray) -> np.ndarray:
    """(2, C, W, J) second moments of completions."""
    return (advantage_2WJ**2)[:, None] * (workload.tokens_2C**step.token_power)[:, :, None, None]


def _prompt_probabilities(count_CW: np.ndarray, value_CW: np.ndarray, rate: float, floor: float) -> np.ndarray:
    """(W,) probabilities of rolling prompts out, by what their histories expect of them."""
    count_W = count_CW.sum(0)
    there_W = count_W > TINY * count_W.sum()
    value_W = (count_CW * value_CW).sum(0)[there_W] / count_W[there_W]
    prob_W = np.ones(len(count_W))
    prob_W[there_W] = probabilities(count_W[there_W], np.sqrt(value_W), rate, floor)
    return prob_W
