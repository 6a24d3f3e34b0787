"""What a trainer hands to whoever records a run: one frozen record per generation. Nothing here knows of files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dppo.trl.completions import Drawn
from dppo.trl.prompts import Selection
from dppo.trl.window import Window
from dppo.types import Completions

if TYPE_CHECKING:
    from dppo.trl.trainer import DPPOTrainer

WHY = ("kept", "drawn out", "zero advantage", "no tokens", "left out by the rule", "not used by the round")
"""What became of a completion; the first draw of a generation that could have kept it decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of a run, once it is drawn. Tensors are the trainer's own, to be looked at only.

    P candidate prompts, Q of them rolled out, N = Q * G completions of all ranks, of which this rank has the B from
    ``first_row`` on.
    """

    step: int
    """The first optimizer step that trains on it."""
    steps: int
    """How many optimizer steps do."""
    number: int
    """Generations before it."""
    epoch: float | None
    """Epochs of prompts that were candidates so far; None where that is not known."""
    group: int
    """G, completions per prompt."""
    candidate_P: Tensor | None
    """(P,) dataset rows of the candidates, -1 where not known; None where none is."""
    prob_P: Tensor | None
    """(P,) probability of being rolled out."""
    keep_P: Tensor | None
    """(P,) bool, whether it was."""
    row_Q: Tensor | None
    """(Q,) dataset rows of the prompts rolled out, in the order of completions."""
    reward_N: Tensor
    """(N,) rewards, NaN where there is none."""
    advantage_N: Tensor
    """(N,) advantages: what kept completions are trained with, and those of whole groups for all others."""
    prob_N: Tensor
    """(N,) probability of the prompt times that of the completion; 0 where there is no gradient."""
    weight_N: Tensor
    """(N,) 0 where it is not trained on."""
    why_N: Tensor
    """(N,) integer, a place in ``WHY``."""
    tokens_N: Tensor
    """(N,) completion tokens that carry loss."""
    first_row: int
    """Where this rank's completions begin among all."""
    prompt_ids: Tensor
    """(B, Tp) left-padded."""
    prompt_mask: Tensor
    """(B, Tp)."""
    completion_ids: Tensor
    """(B, T) right-padded."""
    completion_mask: Tensor
    """(B, T)."""


class Recorder(Protocol):
    """Whatever wants to know of each generation. It must not change a thing, nor draw from a global generator."""

    def record(self, generation: Generation) -> None:
        """Look at a generation, after its draws and before it is trained on. Called on every rank."""
        ...


def generation_of(trainer: "DPPOTrainer", window: Window, completions: Completions, drawn: Drawn) -> Generation:
    """The record of the generation that was just drawn.

    Args:
        trainer: its selection, rewards and place in the run are those of this generation.
        window: this rank's part.
        completions: of all ranks.
        drawn: the draws.
    """
    selection, schedule = trainer._selection, trainer.schedule
    first = slice(0, schedule.shares)  # one pass: each completion is in exactly one share
    weight_N, prob_N = drawn.weight_SN[first].sum(0), drawn.prob_SN[first].sum(0)
    prompt_prob_N = _prompt_probability(selection, len(weight_N), trainer.completions.group)
    kept_N = weight_N > 0
    return Generation(
        step=trainer.state.global_step + 1,
        steps=schedule.passes * schedule.shares,
        number=trainer._generation,
        epoch=None if trainer.selector is None else trainer.selector.stream.epochs,
        group=trainer.completions.group,
        candidate_P=None if selection is None else selection.candidate_P,
        prob_P=None if selection is None else selection.prob_P,
        keep_P=None if selection is None else selection.keep_P,
        row_Q=None if selection is None else selection.row_Q,
        reward_N=trainer._reward_N,
        advantage_N=torch.where(kept_N, drawn.advantage_N, completions.advantage_N),
        prob_N=prob_N * prompt_prob_N,
        weight_N=weight_N,
        why_N=reasons(completions, drawn.advantage_N, prob_N, kept_N, _used(selection, len(weight_N))),
        tokens_N=completions.tokens_N,
        first_row=trainer.accelerator.process_index * len(window.prompt_ids),
        prompt_ids=window.prompt_ids,
        prompt_mask=window.prompt_mask,
        completion_ids=window.completion_ids,
        completion_mask=window.completion_mask,
    )


def reasons(
    completions: Completions, trained_advantage_N: Tensor, prob_N: Tensor, kept_N: Tensor, used_N: Tensor
) -> Tensor:
    """(N,) places in ``WHY``.

    Args:
        completions: with advantages from whole groups.
        trained_advantage_N: (N,) what kept completions are trained with.
        prob_N: (N,) probability of being kept.
        kept_N: (N,) bool.
        used_N: (N,) bool, False for groups that the step is not made of.
    """
    why_N = torch.full_like(kept_N, WHY.index("drawn out"), dtype=torch.int64)
    why_N[prob_N == 0] = WHY.index("left out by the rule")
    why_N[~completions.live_N | (trained_advantage_N == 0)] = WHY.index("zero advantage")
    why_N[completions.tokens_N == 0] = WHY.index("no tokens")
    why_N[~used_N] = WHY.index("not used by the round")
    why_N[kept_N] = WHY.index("kept")
    return why_N


def _used(selection: Selection | None, count: int) -> Tensor:
    """(N,) bool: whether a completion's group may be trained on at all."""
    if selection is None:
        return torch.ones(count, dtype=torch.bool)
    return (selection.weight_Q > 0).repeat_interleave(count // len(selection.weight_Q))


def _prompt_probability(selection: Selection | None, count: int, group: int) -> Tensor:
    """(N,) probability with which each completion's prompt was rolled out."""
    if selection is None or selection.prob_P is None or selection.keep_P is None:
        return torch.ones(count, dtype=torch.float64)
    prob_Q = selection.prob_P[selection.keep_P] if selection.estimate_Q is None else 1 / selection.estimate_Q
    return prob_Q.repeat_interleave(group)
