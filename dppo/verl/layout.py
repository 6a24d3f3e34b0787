"""Where completions go: from the weights of a plan to the rows that each rank is sent for each optimizer step.

Pure tensors and lists, without verl. verl cuts a batch into as many equal contiguous parts as there are data-parallel
ranks, and each of these into equal mini-batches, so every rank needs as many rows in every mini-batch. What is missing
is filled with rows at weight 0: the shortest of those that were dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.pruning import TokenDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is known of the rows of a batch before some are chosen, of fillers that the engine added too.

    Raises:
        ShapeError: tensors of different lengths.
    """

    length_N: Tensor
    """(N,) tokens of each row, prompt and completion: what a forward pass costs."""
    tokens_N: Tensor
    """(N,) tokens of each row that carry loss; 0 for rows that the engine added."""

    def __post_init__(self) -> None:
        if self.length_N.shape != self.tokens_N.shape or self.length_N.dim() != 1:
            raise ShapeError(
                f"lengths {tuple(self.length_N.shape)} and tokens {tuple(self.tokens_N.shape)}: expected one shape (N,)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The rows of a batch, each up to the last token that is drawn."""

    completion_N: Tensor
    """(N,) int64 completion tokens of each row that are forwarded, >= 1."""
    weight_NT: Tensor
    """(N, T) float64 what multiplies the gradient of each token beside its row's weight, 0 where it is not drawn."""
    rows: Rows
    """As long as they are forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The rows that are sent: rank after rank, and for each rank mini-batch after mini-batch."""

    row_B: list[int]
    """Rows of the batch in the order in which they are sent, no row twice."""
    weight_B: Tensor
    """(B,) float32 what multiplies the gradient of each; 0 for fillers."""
    rows_per_step: int
    """Rows of one optimizer step, of all ranks together."""
    fillers: int
    """Rows among them that are there to fill only."""
    cut: Cut | None = None
    """Where completions end in this pass; None where they are sent whole."""


def cut_rows(draws: Sequence[TokenDraw], row_N: Tensor, prompt_B: Tensor, scored_BT: Tensor) -> Cut:
    """Where the rows of a batch end in one pass over it.

    A row that is not drawn ends behind its first token with loss: it may be needed to fill up, and costs little so.

    Args:
        draws: of the optimizer steps of the pass; a completion is drawn in one of them at most.
        row_N: (N,) int64 the row of each completion that the draws are among, -1 where there is none.
        prompt_B: (B,) int64 tokens of each row's prompt.
        scored_BT: (B, T) bool, completion tokens that carry loss.
    """
    there_N = row_N >= 0
    length_B, weight_BT = torch.zeros_like(prompt_B), torch.zeros(scored_BT.shape, dtype=torch.float64)
    length_B[row_N[there_N]] = torch.stack([draw.length_N[there_N] for draw in draws]).amax(0)
    weight_BT[row_N[there_N]] = torch.stack([draw.weight_NT[there_N] for draw in draws]).sum(0)
    completion_B = torch.where(length_B > 0, length_B, scored_BT.int().argmax(1) + 1)
    return _ending(completion_B, weight_BT, prompt_B, scored_BT)


def furthest(cuts: Sequence[Cut], prompt_B: Tensor, scored_BT: Tensor) -> Cut:
    """As far as any of some passes goes; weights are the means of theirs. Arguments as for ``cut_rows``."""
    completion_B = torch.stack([cut.completion_N for cut in cuts]).amax(0)
    return _ending(completion_B, torch.stack([cut.weight_NT for cut in cuts]).mean(0), prompt_B, scored_BT)


def _ending(completion_B: Tensor, weight_BT: Tensor, prompt_B: Tensor, scored_BT: Tensor) -> Cut:
    reached_BT = torch.arange(scored_BT.shape[1]) < completion_B[:, None]
    rows = Rows(length_N=prompt_B + completion_B, tokens_N=(scored_BT & reached_BT).sum(1))
    return Cut(completion_N=completion_B, weight_NT=weight_BT, rows=rows)


def place(
    weight_UN: Tensor, rows: Rows, ranks: int, *, tokens_U: Tensor | None = None, scale: float = 1.0
) -> Placement:
    """Deal the rows with a weight to ranks, equally many to each in every optimizer step.

    Within a step rows are dealt by falling length, each to the rank with the fewest tokens among those with room.

    Args:
        weight_UN: (U, N) weight of each row of the batch in each optimizer step, 0 where it is left out; a row may have
            a weight in one step only.
        rows: of the batch.
        ranks: data-parallel ranks, >= 1.
        tokens_U: (U,) tokens of each step's share of the full batch, where the engine divides the loss by the tokens
            that it is sent: weights then make up for the difference. None where it divides by a fixed number.
        scale: what all weights are multiplied by: that fixed number over the one that the step is made of.

    Raises:
        ShapeError: a row has weights in two steps, or there are too few rows to fill up with.
    """
    kept_UN = weight_UN > 0
    if bool((kept_UN.sum(0) > 1).any()) or weight_UN.shape[1:] != rows.length_N.shape:
        raise ShapeError(
            f"weights {tuple(weight_UN.shape)} for {len(rows.length_N)} rows: expected (steps, rows), and each row "
            "in one step only. Place each pass over the batch by itself."
        )
    most = int(kept_UN.sum(1).max())
    per_step = max(1, -(-most // ranks)) * ranks
    chosen = _filled([kept_N.nonzero()[:, 0].tolist() for kept_N in kept_UN], rows, per_step)
    weight_N = weight_UN.sum(0) * scale
    if tokens_U is not None:
        for step, taken in enumerate(chosen):
            sent = float(rows.tokens_N[torch.tensor(taken)].sum())
            weight_N[kept_UN[step]] *= sent / float(tokens_U[step]) if float(tokens_U[step]) else 0.0
    row_B = _dealt(chosen, rows.length_N.tolist(), ranks)
    return Placement(
        row_B=row_B,
        weight_B=weight_N[torch.tensor(row_B)].float(),
        rows_per_step=per_step,
        fillers=len(row_B) - int(kept_UN.sum()),
    )


def forwarded(placements: Sequence[Placement], rows: Rows, ranks: int) -> list[int]:
    """The rows that passes before the update go over: of every placement, each once, in the order of the ranks."""
    if len(placements) == 1:
        return placements[0].row_B
    weight_UN = torch.zeros(1, len(rows.length_N))
    weight_UN[0, [row for placement in placements for row in placement.row_B]] = 1.0
    return place(weight_UN, rows, ranks).row_B


def engine_shares(count: int, rows_per_step: int, ranks: int) -> Tensor:
    """(U, N) bool, the mini-batch that the engine trains each of N rows in where it is sent the batch as it lies.

    ``count`` is N, a multiple of ``rows_per_step``: rows of a mini-batch, of all ranks together.
    """
    share_N = torch.arange(count) % (count // ranks) // (rows_per_step // ranks)
    return share_N == torch.arange(count // rows_per_step)[:, None]


def _dealt(chosen: Sequence[Sequence[int]], length: Sequence[int], ranks: int) -> list[int]:
    """Rows of each step in the order in which they are sent: ranks get as many, and about as many tokens."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    total = [0] * ranks
    for taken in chosen:
        room, load = [len(taken) // ranks] * ranks, [0] * ranks
        for row in sorted(taken, key=lambda row: (-length[row], row)):
            rank = min((rank for rank in range(ranks) if room[rank]), key=lambda rank: (load[rank], total[rank]))
            dealt[rank].append(row)
            room[rank] -= 1
            load[rank] += length[row]
            total[rank] += length[row]
    return [row for rank in dealt for row in rank]


def _filled(kept: Sequence[list[int]], rows: Rows, per_step: int) -> list[list[int]]:
    """The rows of each step with fillers, the emptiest step first: it gets those whose tokens can be divided by."""
    used = {row for step in kept for row in step}
    length, tokens = rows.length_N.tolist(), rows.tokens_N.tolist()
    idle = sorted(
        (row for row in range(len(length)) if row not in used), key=lambda row: (not tokens[row], length[row])
    )
    missing = len(kept) * per_step - len(used)
    if missing > len(idle):
        raise ShapeError(
            f"{len(kept)} optimizer steps of {per_step} rows need {missing} rows to fill up with, and {len(idle)} are "
            "left. Pad the batch to rows_needed(completions, steps, ranks)."
        )
    filled = [list(step) for step in kept]
    for step in sorted(range(len(kept)), key=lambda step: len(kept[step])):
        wanted = per_step - len(kept[step])
        filled[step] += idle[:wanted]
        del idle[:wanted]
    return filled


def rows_needed(completions: int, steps: int, ranks: int) -> int:
    """Rows that a batch must have so that any choice among its completions can be placed, evenly dealt to the ranks.

    ``completions`` are those of the largest of so many ``steps``.
    """
    return -(-completions // ranks) * ranks * steps


def places(keys: Mapping[int, str], asked: Sequence[str], size_Q: Sequence[int]) -> list[int]:
    """Where each completion that was asked for is in a batch: its row, or -1 where there is none.

    A batch lists rows in the order in which they were finished; this puts them in the order of the prompts, so that
    draws do not depend on the speed of a sampler. ``keys`` are ``{prompt}_{session}_{output}``, by row.

    Raises:
        ShapeError: a session has several outputs, or a row is of no prompt that was asked for.
    """
    start, total = {}, 0
    for prompt, size in zip(asked, size_Q, strict=True):
        start[prompt] = (total, size)
        total += size
    row_N = [-1] * total
    for row, key in keys.items():
        prompt, session, output = key.rsplit("_", 2)
        first, size = start.get(prompt, (0, 0))
        if int(output) or int(session) >= size:
            raise ShapeError(
                f"row {key!r} is output {output} of session {session} of a prompt that {size} were asked of: one "
                "output of each session is served. Use an agent loop that returns one."
            )
        row_N[first + int(session)] = row
    return row_N


def scaled_gradient(value: Tensor, factor: Tensor) -> Tensor:
    """``value`` as it is, whose gradient is multiplied by ``factor``, which broadcasts to it."""
    fixed = value.detach()
    return fixed + (value - fixed) * factor
