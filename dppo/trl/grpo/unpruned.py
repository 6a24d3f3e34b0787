"""Forward passes of a generation if nothing were dropped: laid out as kept rows are, and not run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.step import StepPlan
from dppo.trl.batch import RankBatch
from dppo.trl.forwards import ForwardPasses
from dppo.types import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpruned:
    """Forward passes of one rank in a generation from which nothing is dropped."""

    scored: Sequence[Work]
    """Passes of each policy that scores without gradient."""
    trained: Sequence[Work]
    """(U,) passes of each optimizer step."""


def unpruned_rows(plan: StepPlan) -> tuple[Tensor, list[float]]:
    """(U, N) bool completions of each optimizer step before any is dropped, and the number that each stands for.

    The number is 1, or more if prompts were not rolled out. Rounds replace such prompts by others, so it is 1 too.
    """
    found = plan.completions
    row_UN = plan.share_UN & (plan.prompts.weight_Q[found.group_N] > 0) & (found.tokens_N > 0)
    if plan.method.rounds is not None:
        return row_UN, [1.0] * len(row_UN)
    tokens_U = (row_UN * found.tokens_N).sum(1).double()
    return row_UN, torch.where(tokens_U > 0, plan.tokens_U / tokens_U, 1.0).tolist()


def unpruned_passes(forwards: ForwardPasses, own: RankBatch, plan: StepPlan, rank: int) -> Unpruned:
    """Forward passes over all completions of a generation that ``rank`` rolled out, ``own``."""
    row_UN, times_U = unpruned_rows(plan)
    size = len(own.completion_ids)
    row_UB = row_UN[:, rank * size : (rank + 1) * size].float()
    mean = sum(times_U) / len(times_U)
    scored = [_planned(forwards, own, row_B, mean) for row_B in forwards.scored(row_UB).values()]
    trained = [_planned(forwards, own, *each) for each in zip(row_UB, times_U, strict=True)]
    return Unpruned(scored=scored, trained=trained)


def _planned(forwards: ForwardPasses, own: RankBatch, row_B: Tensor, times: float) -> Work:
    """Passes over the rows of positive weight, each of which stands for ``times`` rows.

    One pass stays one while the rows that it stands for fit into it.
    """
    budget = forwards.budget(own)
    places = forwards.layout.places(own, row_B.nonzero().flatten().tolist(), budget)
    if not places:
        return Work()
    tokens = times * sum(forwards.layout.tokens(own, here) for here in places)
    return Work(passes=max(1 + times * (len(places) - 1), tokens / budget), tokens=tokens)
