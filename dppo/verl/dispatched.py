"""The part of a planned step that workers are sent: rows of verl's batch, laid out for the passes over it."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from dppo.step import StepPlan
from dppo.verl.batch import Returned
from dppo.verl.layout import Placement, Prefixes, engine_shares, forwarded, furthest, place


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """A step once it is planned."""

    whole: Any
    """verl's ``KVBatchMeta`` of everything that was rolled out: verl logs and clears all of it."""
    passes: list[Placement]
    """Rows of each pass of the update over the batch."""
    forwarded: list[int]
    """Rows that passes before the update go over."""
    rows: Prefixes
    """All rows, as far as passes before the update forward them, with the weights of ``furthest``."""
    epochs: int = 1
    """Repetitions of each pass: 1 if every pass has a draw."""

    @property
    def cut(self) -> bool:
        """True if tokens are left out of completions."""
        return self.passes[0].rows.weight_NT is not None

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the rows that are sent, by the names of docs/verl.md."""
        rolled_out = sum(int(tag["seq_len"]) for tag in self.whole.tags if not tag.get("is_padding"))
        return {
            "rows/sent": float(sum(len(each.row_B) for each in self.passes)),
            "rows/fillers": float(sum(each.fillers for each in self.passes)),
            "rows/forwarded": float(len(self.forwarded)),
            "rows/tokens_share": int(self.rows.length_N[self.forwarded].sum()) / rolled_out,
        }

    def keys(self, row_B: list[int]) -> list[str]:
        """verl's names of some rows."""
        return [self.whole.keys[row] for row in row_B]

    def balance(self, ranks: int) -> tuple[list[int], list[list[int]]]:
        """Lengths of the forwarded rows, and the places of each rank's among them, for verl's metric of balance."""
        count = len(self.forwarded) // ranks
        parts = [list(range(rank * count, (rank + 1) * count)) for rank in range(ranks)]
        return self.rows.length_N[self.forwarded].tolist(), parts


def drawn_rows(
    whole: Any, found: Returned, plan: StepPlan, *, passes: int, ranks: int, by_tokens: bool, counted: int
) -> Dispatched:
    """Rows that some draw keeps; each pass over the batch has its own draws.

    Args:
        whole: verl's ``KVBatchMeta``.
        found: its content.
        plan: of the step.
        passes: of the update over the batch, >= 1.
        ranks: data-parallel ranks, >= 1.
        by_tokens: True if the engine divides the loss by the tokens that it is sent.
        counted: completions that it divides by otherwise.
    """
    weight_UN, each = found.by_row(plan.weight_UN), len(plan.token_draws) // passes
    rows_P = [found.rows.cut(plan.token_draws[k * each : (k + 1) * each], found.row_N) for k in range(passes) if each]
    rows_P = rows_P or [found.rows] * passes
    # Blocks of ``fill`` have more prompts than verl divides by; a mean over the tokens that are sent does not change.
    scale = 1.0 if by_tokens else counted / plan.prompts.sequences
    placements = []
    for weight_SN, tokens_S, rows in zip(weight_UN.chunk(passes), plan.tokens_U.chunk(passes), rows_P, strict=True):
        if each and plan.method.normaliser.per_sequence:  # verl divides by the tokens before the cut
            weight_SN = weight_SN * (rows.tokens_N / found.rows.tokens_N.clamp_min(1))
        placements.append(place(weight_SN, rows, ranks, tokens_U=tokens_S if by_tokens else None, scale=scale))
    rows = furthest(rows_P, weight_UN.unflatten(0, (passes, -1)).sum(1))
    return Dispatched(whole=whole, passes=placements, forwarded=forwarded(placements, rows, ranks), rows=rows)


def live_rows(
    whole: Any, found: Returned, plan: StepPlan, *, epochs: int, ranks: int, by_tokens: bool, rows_per_step: int
) -> Dispatched:
    """verl's own mini-batches without the rows that have no gradient; the unchanged batch if all have one.

    If prompts are shared, rows of a mini-batch are dealt to ranks by groups.

    ``rows_per_step`` are those of a mini-batch on all ranks. The rest is as for ``drawn_rows``.
    """
    count, live_N = len(whole.keys), found.by_row(plan.completions.live_N)
    scattered = found.rows.group_N is not None and ranks > 1
    if bool(plan.completions.live_N[found.row_N >= 0].all()) and not scattered:
        every = list(range(count))
        placement = Placement(row_B=every, weight_B=torch.ones(count), rows=found.rows, rows_per_step=rows_per_step)
    else:
        share_UN = engine_shares(count, rows_per_step, ranks)
        tokens_U = (share_UN * found.rows.tokens_N).sum(1) if by_tokens else None
        placement = place((share_UN & live_N).double(), found.rows, ranks, tokens_U=tokens_U)
    rows = replace(found.rows, weight_NT=live_N.double()[:, None])
    return Dispatched(whole=whole, passes=[placement], forwarded=placement.row_B, rows=rows, epochs=epochs)
