"""What one optimizer step has to do under each option: completions, tokens and noise, all of them expectations."""

import functools

import numpy as np
import torch

from dppo.pruning import selection_ceiling
from dppo_lab.planning.cells import Cells, cells_of, probabilities, prompt_values
from dppo_lab.planning.records import Option, Step, Work
from dppo_lab.planning.workload import Workload, longest_of

UNPRUNED = Option(name="unpruned")
"""All completions of all prompts, against their siblings: what noise is measured in."""


def work_of(workload: Workload, step: Step, option: Option) -> Work:
    """What a step does under an option, on average.

    Args:
        workload: prompts and what the model makes of them.
        step: sizes.
        option: how the step is taken; prompts are pruned as if all of them had a history.
    """
    cells = cells_of(workload, step, option)
    prob_2X = kept(cells, option, step.floor)
    count_2X, groups = cells.count_2X, float(cells.groups_X.sum())
    completions, trained = float(count_2X.sum()), float((count_2X * prob_2X).sum())
    return Work(
        prompts=groups / step.passes,
        completions=completions / step.passes,
        generated=float((count_2X * cells.tokens_2X).sum()) / step.passes,
        trained=trained,
        forwarded=_forwarded(workload, step, option, cells, prob_2X),
        noise=noise(workload, step, option, cells, prob_2X),
    )


def kept(cells: Cells, option: Option, floor: float) -> np.ndarray:
    """(2, X) probability of each completion to be forwarded with a gradient.

    Args:
        cells: every sort of group.
        option: how much is pruned, and whether completions without a gradient are forwarded all the same.
        floor: of the run.
    """
    live_2X = (cells.score_2X > 0) & (cells.members_2X > 0)
    prob_2X = np.full(live_2X.shape, 1.0 if option.forwarded == "all" else 0.0)
    prob_2X[live_2X] = probabilities(cells.count_2X[live_2X], cells.score_2X[live_2X], option.completion_rate, floor)
    return prob_2X


def noise(workload: Workload, step: Step, option: Option, cells: Cells, prob_2X: np.ndarray) -> float:
    """Second moment of the gradient over that of all completions of as many prompts against their siblings; > 0.

    1 where no completion has a gradient. A baseline from history is compared with advantages that nothing divides.

    Args:
        workload: prompts and what the model makes of them.
        step: sizes.
        option: how the step is taken.
        cells: its sorts of groups.
        prob_2X: (2, X) what is kept of them.
    """
    alike = step if option.baseline == "group" else step.unscaled()
    whole = _whole(workload, alike)
    prob_2X = np.where((cells.score_2X > 0) & (prob_2X == 0), 1.0, prob_2X)  # of cells without such completions
    return cells.moment(prob_2X) / whole if whole > 0 else 1.0


def completion_ceiling(workload: Workload, step: Step) -> float:
    """``selection_ceiling`` of the completions with a gradient, of the update, >= 1.

    Args:
        workload: prompts and what the model makes of them.
        step: sizes.
    """
    cells = cells_of(workload, step, UNPRUNED)
    live_2X = (cells.score_2X > 0) & (cells.members_2X > 0)
    value_N = (cells.count_2X * cells.score_2X**2)[live_2X]
    return selection_ceiling(torch.from_numpy(value_N), torch.from_numpy((cells.count_2X * cells.tokens_2X)[live_2X]))


def prompt_ceiling(workload: Workload, step: Step) -> float:
    """``selection_ceiling`` of prompts as one earlier group of each tells them apart, of rollout and update, >= 1.

    Args:
        workload: prompts and what the model makes of them.
        step: sizes.
    """
    count_W, value_W, tokens_W = prompt_values(workload, step)
    return selection_ceiling(torch.from_numpy(count_W * value_W), torch.from_numpy(count_W * tokens_W))


@functools.lru_cache(maxsize=8)
def _whole(workload: Workload, step: Step) -> float:
    """Second moment of the gradient of a step that prunes nothing."""
    cells = cells_of(workload, step, UNPRUNED)
    return cells.moment(np.ones_like(cells.score_2X))


def _forwarded(workload: Workload, step: Step, option: Option, cells: Cells, prob_2X: np.ndarray) -> float:
    """Tokens that are forwarded with a gradient."""
    kept_2X = cells.count_2X * prob_2X
    if option.layout == "padded":
        groups, completions = (float(part.sum()) * step.shares for part in (cells.groups_X, cells.count_2X))
        longest = longest_of(workload.longest_prompt, groups) + longest_of(workload.longest_completion, completions)
        return float(kept_2X.sum()) * longest
    tokens = float((kept_2X * cells.tokens_2X).sum())
    if option.layout == "packed":
        return tokens + float(kept_2X.sum()) * (workload.prompt_tokens - 1)
    trunks = float(cells.groups_X @ (1 - np.prod((1 - prob_2X) ** cells.members_2X, axis=0)))
    return tokens + trunks * (workload.prompt_tokens - 1)
