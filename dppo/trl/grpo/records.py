"""What a trainer tells a recorder of its run, with one frozen record per generation. Nothing here knows of files."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.groups import group_sizes
from dppo.pruning import SampledTokens
from dppo.step import Passes, StepPlan
from dppo.trl.batch import PADDED, Padded, RankBatch
from dppo.types import Candidates, Completions

WHY = ("kept", "not drawn", "zero advantage", "no tokens", "left out by the rule", "not used by the round")
"""What became of a completion; the first draw of a generation that could have kept it decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Padded):
    """One generation of a run, once it is drawn. Tensors are the trainer's own, to be looked at only.

    P candidate prompts, Q of them rolled out, N completions of all ranks, of which this rank has the B from
    ``first_row`` on.
    """

    step: int
    """The first optimizer step that trains on it."""
    steps: int
    """How many optimizer steps do; of parts of several generations, how many draws there are."""
    number: int
    """Generations before it."""
    epoch: float | None
    """Epochs of prompts that were candidates so far; None where that is not known."""
    size_Q: Tensor
    """(Q,) completions of each prompt rolled out."""
    candidate_P: Tensor
    """(P,) dataset rows of the candidates, -1 where not known."""
    prob_P: Tensor
    """(P,) probability of being rolled out."""
    keep_P: Tensor
    """(P,) bool, whether it was."""
    row_Q: Tensor
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
    expected: Candidates | None = None
    """(P,) what history expected of the candidates; None where there is no history."""
    signal_Q: Tensor | None = None
    """(Q,) size of each group's gradient as far as scores tell, in the unit of what was expected; None as above."""
    sampled: SampledTokens | None = None
    """The tokens of all completions as they were sampled; None where no token of a completion is left out."""
    moment_NT: Tensor | None = None
    """(N, T) guess of the second moment of each token's gradient; None as above."""


class Recorder:
    """What ``DPPOTrainer``, and ``StockWatch`` for TRL's own trainer, tell of a run. Here each method does nothing.

    A recorder must not change what is trained, nor draw from a global generator. All ranks call every method together.
    """

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """A context around ``train``, and in it around what is not training: ``evaluate``, ``save``, ``record``."""
        return nullcontext()

    def rolled_out(self, completions: int, tokens: int) -> None:
        """Count completions that this rank has generated for training, and the tokens that the model wrote."""

    def generation(self, generation: Generation) -> None:
        """Look at a generation, after its draws and before it is trained on."""

    def trained(self, tokens: Tensor) -> None:
        """Count () completion tokens that one call of the loss on this rank trains on."""


def generation_of(
    plan: StepPlan, batch: RankBatch, passes: Passes, *, step: int, number: int, epoch: float | None, rank: int
) -> Generation:
    """The record of a generation that was just drawn."""
    prompts, completions = plan.prompts, plan.completions
    first = slice(0, passes.shares)  # one pass: each completion is in exactly one share
    weight_N, prob_N = plan.weight_UN[first].sum(0), plan.prob_UN[first].sum(0)
    kept_N, group_N = weight_N > 0, completions.group_N
    return Generation(
        step=step,
        steps=passes.steps,
        number=number,
        epoch=epoch,
        size_Q=group_sizes(group_N),
        candidate_P=prompts.candidates.row_P,
        prob_P=prompts.draw.prob_N,
        keep_P=prompts.draw.keep_N,
        row_Q=prompts.row_Q,
        reward_N=plan.rewards.total_N,
        advantage_N=torch.where(kept_N, plan.advantage_N, completions.advantage_N),
        prob_N=prob_N * prompts.prob_Q[group_N],
        weight_N=weight_N,
        why_N=reasons(completions, plan.advantage_N, prob_N, kept_N, (prompts.weight_Q > 0)[group_N]),
        tokens_N=completions.tokens_N,
        first_row=rank * len(batch.prompt_ids),
        **{name: getattr(batch, name) for name in PADDED},
        expected=prompts.candidates,
        signal_Q=plan.signal_Q,
        sampled=plan.sampled,
        moment_NT=plan.moment_NT,
    )


def reasons(
    completions: Completions, trained_advantage_N: Tensor, prob_N: Tensor, kept_N: Tensor, used_N: Tensor
) -> Tensor:
    """(N,) places in ``WHY``."""
    why_N = torch.full_like(kept_N, WHY.index("not drawn"), dtype=torch.int64)
    why_N[prob_N == 0] = WHY.index("left out by the rule")
    why_N[~completions.live_N | (trained_advantage_N == 0)] = WHY.index("zero advantage")
    why_N[completions.tokens_N == 0] = WHY.index("no tokens")
    why_N[~used_N] = WHY.index("not used by the round")
    why_N[kept_N] = WHY.index("kept")
    return why_N
