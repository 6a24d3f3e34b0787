"""What of a planned step workers are sent: rows of verl's batch, laid out for the passes over it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dppo.step import StepPlan
from dppo.verl.batch import Returned
from dppo.verl.layout import Cut, Placement, Rows, cut_rows, engine_shares, forwarded, furthest, place


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A step once it is planned."""

    whole: Any
    """verl's ``KVBatchMeta`` of everything that was rolled out: what it logs and clears is about this."""
    passes: list[Placement]
    """Rows of each pass of the update over the batch."""
    forwarded: list[int]
    """Rows that passes before the update go over, where they have not been yet."""
    weight_NT: Tensor
    """(N, 1) what multiplies each row on average over the passes, 0 where it is left out; (N, T) of completion tokens
    where some of these are."""
    tokens_N: Tensor
    """(N,) tokens of each row that carry loss, those behind a cut included."""
    rows: Rows
    """As long as passes before the update forward them."""
    epochs: int
    """Times that each pass is gone through: 1 where every pass has a draw."""
    before: Cut | None = None
    """Where completions end in passes before the update, as far as any of these goes; None where they are whole."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of what is sent, by the names of docs/verl.md."""
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
        """Lengths of the rows that are forwarded, and those of each rank, as verl's metric of balance takes them."""
        count = len(self.forwarded) // ranks
        length = self.rows.length_N[self.forwarded].tolist()
        return length, [list(range(rank * count, (rank + 1) * count)) for rank in range(ranks)]


def drawn_rows(
    whole: Any, found: Returned, plan: StepPlan, *, passes: int, ranks: int, by_tokens: bool, counted: int
) -> Sent:
    """Rows that some draw keeps, each pass over the batch with draws of its own.

    Args:
        whole: verl's ``KVBatchMeta``.
        found: what it holds.
        plan: of the step.
        passes: of the update over the batch, >= 1.
        ranks: data-parallel ranks, >= 1.
        by_tokens: whether the engine divides the loss by the tokens that it is sent.
        counted: completions that it divides by otherwise.
    """
    weight_UN = found.by_row(plan.weight_UN)
    shares = len(plan.token_draws) // passes
    starts = range(0, len(plan.token_draws), shares or 1)
    cuts = [
        cut_rows(plan.token_draws[start : start + shares], found.row_N, found.prompt_B, found.scored_BT)
        for start in starts
    ]
    # Blocks of ``fill`` have more prompts than verl divides by; a mean over the tokens that are sent does not care.
    scale = 1.0 if by_tokens else counted / plan.prompts.sequences
    placements = []
    parts = zip(weight_UN.chunk(passes), plan.tokens_U.chunk(passes), cuts or [None] * passes, strict=True)
    for weight_SN, tokens_S, cut in parts:
        rows = found.rows if cut is None else cut.rows
        if cut is not None and plan.method.normaliser.per_sequence:  # verl divides by the tokens before the cut
            weight_SN = weight_SN * (rows.tokens_N / found.rows.tokens_N.clamp_min(1))
        placement = place(weight_SN, rows, ranks, tokens_U=tokens_S if by_tokens else None, scale=scale)
        placements.append(replace(placement, cut=cut))
    weight_PN1 = weight_UN.unflatten(0, (passes, -1)).sum(1)[:, :, None]
    weighted = [replace(cut, weight_NT=cut.weight_NT * w_N1) for cut, w_N1 in zip(cuts, weight_PN1, strict=False)]
    before = furthest(weighted, found.prompt_B, found.scored_BT) if cuts else None
    rows = found.rows if before is None else before.rows
    return Sent(
        whole=whole,
        passes=placements,
        forwarded=forwarded(placements, rows, ranks),
        weight_NT=weight_PN1.mean(0) if before is None else before.weight_NT,
        tokens_N=found.rows.tokens_N,
        rows=rows,
        epochs=1,
        before=before,
    )


def live_rows(
    whole: Any, found: Returned, plan: StepPlan, *, epochs: int, ranks: int, by_tokens: bool, rows_per_step: int
) -> Sent:
    """verl's own mini-batches without the rows that have no gradient; its own batch as it lies where all have one.

    ``plan`` drops nothing; ``epochs`` are verl's over a batch, ``rows_per_step`` of its mini-batches on all ranks; the
    rest is as for ``drawn_rows``.
    """
    count, live_N = len(whole.keys), found.by_row(plan.completions.live_N)
    share_UN = engine_shares(count, rows_per_step, ranks)
    if bool(plan.completions.live_N[found.row_N >= 0].all()):
        placement = Placement(
            row_B=list(range(count)), weight_B=torch.ones(count), rows_per_step=rows_per_step, fillers=0
        )
    else:
        tokens_U = (share_UN * found.rows.tokens_N).sum(1) if by_tokens else None
        placement = place((share_UN & live_N).double(), found.rows, ranks, tokens_U=tokens_U)
    return Sent(
        whole=whole,
        passes=[placement],
        forwarded=placement.row_B,
        weight_NT=live_N.double()[:, None],
        tokens_N=found.rows.tokens_N,
        rows=found.rows,
        epochs=epochs,
    )
