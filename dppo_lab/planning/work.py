"""What one optimizer step has to do under each option: completions, tokens and noise, all of them expectations.

Every combination of a prompt's kind, its history and its group has a probability, and everything else is a sum over
these cells. Which prompts and completions are kept with which probability is what ``dppo.pruning`` says of such a
mixture, each cell with its expected number of units.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import comb

from dppo.pruning import selection_ceiling
from dppo_lab.planning.records import EVERYTHING, Kept, Option, Step, Work
from dppo_lab.planning.tokens import TokenSample, probabilities
from dppo_lab.planning.workload import Workload, longest_of

TINY = 1e-12
"""Fewer units than that are none, and scores that much below the largest are rounding."""
UNPRUNED = Option(name="unpruned")
"""All completions of all prompts, against their siblings: noise is measured in units of its second moment."""


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
        """(2, X) whether there are such completions, and they have a gradient."""
        return (self.score_2X > 0) & (self.members_2X > 0)

    def moment(self, prob_2X: np.ndarray) -> float:
        """Second moment of a step's gradient where each is kept with its probability."""
        scored_2X = self.score_2X > 0
        return float((self.count_2X * self.score_2X**2)[scored_2X] @ (1 / prob_2X[scored_2X]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Candidate prompts by kind and by the number of right ones among their earlier completions."""

    share_CW: np.ndarray
    """(C, W) of all prompts."""
    mean_W: np.ndarray
    """(W,) expected pass rate, given such a history."""
    worth_W: np.ndarray
    """(W,) variance of a reward over that of the expected pass rate; infinite where that is certain."""


def work_of(workload: Workload, step: Step, option: Option, tokens: TokenSample | None = None) -> Work:
    """What a step does under an option, on average; prompts are pruned as if all of them had a history.

    ``tokens`` are those of completions of groups of the step's size; None where no probabilities of tokens are known.
    """
    part = EVERYTHING
    if tokens is not None and tokens.fits(step, option):
        part = tokens.kept(option, step)
        option = replace(option, completion_rate=0.0) if tokens.scored else option
    cells = cells_of(workload, step, option)
    prob_2X = kept(cells, option, step)
    count_2X, groups = cells.count_2X, float(cells.groups_X.sum())
    completions, trained = float(count_2X.sum()), float((count_2X * prob_2X).sum())
    return Work(
        prompts=groups / step.passes,
        completions=completions / step.passes,
        generated=float((count_2X * cells.tokens_2X).sum()) / step.passes,
        trained=trained * part.reached,
        forwarded=_forwarded(workload, step, option, cells, prob_2X, part),
        scored=float((count_2X * prob_2X * cells.tokens_2X).sum()) * part.scored,
        noise=_noise(workload, step, option, cells, prob_2X) * part.noise,
    )


def completion_ceiling(workload: Workload, step: Step) -> float:
    """``selection_ceiling`` of the completions with a gradient, of the update, >= 1."""
    cells = cells_of(workload, step, UNPRUNED)
    value_N = (cells.count_2X * cells.score_2X**2)[cells.live_2X]
    cost_N = (cells.count_2X * cells.tokens_2X)[cells.live_2X]
    return selection_ceiling(torch.from_numpy(value_N), torch.from_numpy(cost_N))


def prompt_ceiling(workload: Workload, step: Step) -> float:
    """``selection_ceiling`` of prompts, told apart by one earlier group of each, of rollout and update, >= 1."""
    prompts = seen(workload, step.generations)
    *_, value_CW = _groups(workload, step, UNPRUNED, prompts)
    right_C, wrong_C = workload.tokens_2C
    tokens_C = step.generations * (workload.rate_C * right_C + (1 - workload.rate_C) * wrong_C)
    there_W = prompts.share_CW.sum(0) > TINY
    value_W, tokens_W = (prompts.share_CW * value_CW).sum(0), tokens_C @ prompts.share_CW
    return selection_ceiling(torch.from_numpy(value_W[there_W]), torch.from_numpy(tokens_W[there_W]))


def chances(right_J: np.ndarray, size: int, rate_C: np.ndarray) -> np.ndarray:
    """(C, J) probabilities of ``right_J`` right ones among ``size`` completions, at each pass rate."""
    return comb(size, right_J) * rate_C[:, None] ** right_J * (1 - rate_C[:, None]) ** (size - right_J)


def seen(workload: Workload, earlier: int) -> Prompts:
    """The prompts, with ``earlier`` earlier completions of each."""
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

    They are those of ``dppo.objective.history_advantages``: against a mix of the siblings' mean and what history
    expects, by precision. Without a history the baseline is the group's own mean times ``size / (size - 1)``, under
    which the expected gradient is the same for every size. ``scaled="group"`` divides by the deviation of the group;
    advantages from a history are never divided.
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
    """Every sort of group of a step under an option. A history holds G earlier completions of its prompt."""
    size = option.group or step.generations
    remembers = option.prompt_rate > 0 or option.baseline == "history"
    prompts = seen(workload, step.generations if remembers else 0)
    square_2CWJ, chance_CJ, member_2J, value_CW = _groups(workload, step, option, prompts)
    total = step.prompts * step.generations / size
    count_CW = total * prompts.share_CW
    count_W = count_CW.sum(0)
    there_W = count_W > TINY * count_W.sum()
    value_W = (count_CW * value_CW).sum(0) / np.where(there_W, count_W, 1.0)  # that the history makes one expect
    prob_W = probabilities(np.where(there_W, count_W, 0.0), np.sqrt(value_W), option.prompt_rate, step.floor)
    groups_CWJ = total * (prompts.share_CW * prob_W)[:, :, None] * chance_CJ[:, None]
    there_CWJ = groups_CWJ > TINY * total

    def of_cells(value_2CWJ: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value_2CWJ, (2, *groups_CWJ.shape))[:, there_CWJ]

    return Cells(
        groups_X=groups_CWJ[there_CWJ],
        members_2X=of_cells(member_2J[:, None, None]).astype(float),
        tokens_2X=of_cells(workload.tokens_2C[:, :, None, None]),
        score_2X=of_cells(np.sqrt(square_2CWJ) / prob_W[:, None]),
    )


def kept(cells: Cells, option: Option, step: Step) -> np.ndarray:
    """(2, X) probability of each completion to be forwarded with a gradient."""
    live_2X = (cells.members_2X > 0) if step.every else cells.live_2X
    prob_2X = np.full(live_2X.shape, 1.0 if option.forwarded == "all" else 0.0)
    count_N, score_N = cells.count_2X[live_2X], cells.score_2X[live_2X]
    prob_2X[live_2X] = probabilities(count_N, score_N, option.completion_rate, step.floor, step.least)
    return prob_2X


def _groups(
    workload: Workload, step: Step, option: Option, prompts: Prompts
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Groups by their J - 1 right completions.

    (2, C, W, J) second moments of a completion, (C, J) chances of a group, (2, J) right and wrong completions in it,
    and (C, W) second moments of a group.
    """
    size = option.group or step.generations
    right_J = np.arange(size + 1)
    advantage_2WJ = advantages(prompts, size, option, step.scaled)
    square_2CWJ = (advantage_2WJ**2)[:, None] * (workload.tokens_2C**step.token_power)[:, :, None, None]
    chance_CJ, member_2J = chances(right_J, size, workload.rate_C), np.stack([right_J, size - right_J])
    return square_2CWJ, chance_CJ, member_2J, np.einsum("kj,aj,akhj->kh", chance_CJ, member_2J, square_2CWJ)


def _noise(workload: Workload, step: Step, option: Option, cells: Cells, prob_2X: np.ndarray) -> float:
    """``Work.noise``; 1 where no completion has a gradient.

    A baseline from history is compared with undivided advantages, as its own are undivided.
    """
    whole = _whole(workload, step if option.baseline == "group" else replace(step, scaled="none"))
    prob_2X = np.where((cells.score_2X > 0) & (prob_2X == 0), 1.0, prob_2X)  # of cells without such completions
    return cells.moment(prob_2X) / whole if whole > 0 else 1.0


def has_gradient(workload: Workload, step: Step) -> bool:
    """Whether any group has a gradient, without which there is nothing to choose by."""
    return _whole(workload, step) > 0


@functools.lru_cache(maxsize=256)  # every resample of a plan is asked for under each of its options
def _whole(workload: Workload, step: Step) -> float:
    """Second moment of the gradient of a step that prunes nothing."""
    cells = cells_of(workload, step, UNPRUNED)
    return cells.moment(np.ones_like(cells.score_2X))


def _forwarded(workload: Workload, step: Step, option: Option, cells: Cells, prob_2X: np.ndarray, part: Kept) -> float:
    """``Work.forwarded``."""
    kept_2X = cells.count_2X * prob_2X
    if option.layout == "padded":
        groups, completions = (float(part.sum()) * step.shares for part in (cells.groups_X, cells.count_2X))
        longest = longest_of(workload.longest_prompt, groups) + longest_of(workload.longest_completion, completions)
        return float(kept_2X.sum()) * longest
    tokens, prob_2X = float((kept_2X * cells.tokens_2X).sum()) * part.forwarded, prob_2X * part.reached
    if option.layout == "packed":
        return tokens + float(kept_2X.sum()) * part.reached * (workload.prompt_tokens - 1)
    trunks = float(cells.groups_X @ (1 - np.prod((1 - prob_2X) ** cells.members_2X, axis=0)))
    return tokens + trunks * (workload.prompt_tokens - 1)
