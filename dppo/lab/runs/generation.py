"""The record of one generation of a run, from which its files are written."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.groups import group_sizes
from dppo.pruning import SampledTokens
from dppo.step import StepPlan
from dppo.trl.batch import PADDED, Padded
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.types import Candidates, Completions

WHY = ("kept", "not drawn", "zero advantage", "no tokens", "left out by the rule", "not used by the round")
"""Reasons why a completion was kept or dropped, by the first draw of its generation that could have kept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Padded):
    """One generation of a run, once it is drawn: P candidate prompts, Q of them rolled out, N completions of all ranks.

    This rank has the B completions from ``first_row`` on. Tensors are the trainer's own: nothing may change them.
    """

    step: int
    """The first optimizer step that trains on it."""
    steps: int
    """Optimizer steps that train on it, or draws, if a step takes parts of several generations."""
    number: int
    """Generations before it."""
    epoch: float | None
    """Epochs of prompts that were candidates so far; None if that is not known."""
    size_Q: Tensor
    """(Q,) completions of each prompt rolled out."""
    candidate_P: Tensor
    """(P,) dataset rows of the candidates, -1 if not known."""
    prob_P: Tensor
    """(P,) probability of being rolled out."""
    keep_P: Tensor
    """(P,) bool, True if it was."""
    row_Q: Tensor
    """(Q,) dataset rows of the prompts rolled out, in the order of completions."""
    reward_N: Tensor
    """(N,) rewards, NaN if there is none."""
    advantage_N: Tensor
    """(N,) advantages: of kept completions those that they are trained with, of others those of whole groups."""
    prob_N: Tensor
    """(N,) probability of the prompt times that of the completion; 0 without a gradient."""
    weight_N: Tensor
    """(N,) 0 if it is not trained on."""
    why_N: Tensor
    """(N,) integer, an index into ``WHY``."""
    tokens_N: Tensor
    """(N,) completion tokens that carry loss."""
    first_row: int
    """Index of this rank's first completion."""
    expected: Candidates | None = None
    """(P,) candidates as history expected them; None without a history."""
    signal_Q: Tensor | None = None
    """(Q,) size of each group's gradient by its scores, in the unit of the expected signal; None as above."""
    sampled: SampledTokens | None = None
    """The tokens of all completions as they were sampled; None if no tokens are left out."""
    moment_NT: Tensor | None = None
    """(N, T) estimated second moment of each token's gradient; None as above."""


def generation_of(trainer: DPPOTrainer, plan: StepPlan, batch: Padded) -> Generation:
    """The record of a generation that a trainer has just drawn from this rank's ``batch``."""
    session, prompts, completions = trainer.session, plan.prompts, plan.completions
    first = slice(0, session.passes.shares)  # one pass: each completion is in exactly one share
    weight_N, prob_N = plan.weight_UN[first].sum(0), plan.prob_UN[first].sum(0)
    kept_N, group_N = weight_N > 0, completions.group_N
    return Generation(
        step=trainer.state.global_step + 1,
        steps=session.passes.steps,
        number=session.number - 1,
        epoch=None if session.source is None else session.source.stream.epochs,
        size_Q=group_sizes(group_N),
        candidate_P=prompts.candidates.row_P,
        prob_P=prompts.draw.prob_N,
        keep_P=prompts.draw.keep_N,
        row_Q=prompts.row_Q,
        reward_N=plan.rewards.total_N,
        advantage_N=torch.where(kept_N, plan.advantage_N, completions.advantage_N),
        prob_N=prob_N * prompts.prob_Q[group_N],
        weight_N=weight_N,
        why_N=_why_of(completions, plan.advantage_N, prob_N, kept_N, (prompts.weight_Q > 0)[group_N]),
        tokens_N=completions.tokens_N,
        first_row=trainer.accelerator.process_index * len(batch.prompt_ids),
        **{name: getattr(batch, name) for name in PADDED},
        expected=prompts.candidates,
        signal_Q=plan.signal_Q,
        sampled=plan.sampled,
        moment_NT=plan.moment_NT,
    )


def _why_of(
    completions: Completions, trained_advantage_N: Tensor, prob_N: Tensor, kept_N: Tensor, used_N: Tensor
) -> Tensor:
    """(N,) indices into ``WHY``."""
    why_N = torch.full_like(kept_N, WHY.index("not drawn"), dtype=torch.int64)
    why_N[prob_N == 0] = WHY.index("left out by the rule")
    why_N[~completions.live_N | (trained_advantage_N == 0)] = WHY.index("zero advantage")
    why_N[completions.tokens_N == 0] = WHY.index("no tokens")
    why_N[~used_N] = WHY.index("not used by the round")
    why_N[kept_N] = WHY.index("kept")
    return why_N
