"""Rows that each rank trains on in each optimizer step, from the weights of a plan. Tensors and lists, without verl.

verl cuts a batch into equal contiguous parts, one for each data-parallel rank, and these into equal mini-batches. Gaps
are filled with rows of weight 0: the shortest of those that were dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.packing import longest_processing_time
from dppo.pruning import TokenDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Rows of a batch as they are forwarded: each prompt and the first tokens of its completion."""

    prompt_N: Tensor
    """(N,) int64 tokens of the prompt."""
    scored_NT: Tensor
    """(N, T) bool, completion tokens with loss, those after a cut included; none in padding rows of the engine."""
    completion_N: Tensor
    """(N,) int64 completion tokens that are forwarded, >= 1."""
    weight_NT: Tensor | None = None
    """(N, T) float64 weight of each token's gradient, beside that of its row; 0 if it is not drawn. None if all are."""
    group_N: Tensor | None = None
    """(N,) int64, equal for rows of one prompt if an engine forwards it once; None if each row has its own."""

    @property
    def length_N(self) -> Tensor:
        """(N,) tokens of prompt and completion: the cost of a forward pass."""
        return self.prompt_N + self.completion_N

    @property
    def tokens_N(self) -> Tensor:
        """(N,) forwarded tokens that carry loss."""
        reached_NT = torch.arange(self.scored_NT.shape[1]) < self.completion_N[:, None]
        return (self.scored_NT & reached_NT).sum(1)

    def cut(self, draws: Sequence[TokenDraw], row_N: Tensor) -> "Prefixes":
        """Rows of one pass up to the last token that a step draws; ``row_N`` (N,) is that of each completion, or -1."""
        found_N = row_N >= 0
        length_N, weight_NT = torch.zeros_like(self.prompt_N), torch.zeros(self.scored_NT.shape, dtype=torch.float64)
        length_N[row_N[found_N]] = torch.stack([draw.length_N[found_N] for draw in draws]).amax(0)
        weight_NT[row_N[found_N]] = torch.stack([draw.weight_NT[found_N] for draw in draws]).sum(0)
        # A row that is not drawn may be needed as a filler, which is cheap behind its first token with loss.
        completion_N = torch.where(length_N > 0, length_N, self.scored_NT.int().argmax(1) + 1)
        return replace(self, completion_N=completion_N, weight_NT=weight_NT)


def furthest(passes: Sequence[Prefixes], weight_PN: Tensor) -> Prefixes:
    """Rows up to the last token that any of P passes forwards, with weights averaged over the passes.

    ``weight_NT`` is the mean of token weights times ``weight_PN``, the weights of rows; (N, 1) if no token is left out.
    """
    weights = [torch.ones(1, 1) if rows.weight_NT is None else rows.weight_NT for rows in passes]
    weight_NT = (torch.stack(weights) * weight_PN[:, :, None]).mean(0)
    completion_N = torch.stack([rows.completion_N for rows in passes]).amax(0)
    return replace(passes[0], completion_N=completion_N, weight_NT=weight_NT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Rows in the order in which they are sent: rank after rank, and for each rank mini-batch after mini-batch."""

    row_B: list[int]
    """Rows of the batch, no row twice."""
    weight_B: Tensor
    """(B,) float32 weight of each row's gradient; 0 for fillers."""
    rows: Prefixes
    """All rows of the batch, as far as they are sent."""
    rows_per_step: int
    """Rows of one optimizer step, of all ranks together."""

    @property
    def token_weights(self) -> list[Tensor]:
        """B tensors (C_k,) float32, the weight of the gradient of each completion token that is forwarded."""
        all_NT, ends = torch.ones(self.rows.scored_NT.shape), self.rows.completion_N.tolist()
        weight_NT = all_NT if self.rows.weight_NT is None else self.rows.weight_NT.float()
        return [w * weight_NT[row, : ends[row]] for row, w in zip(self.row_B, self.weight_B, strict=True)]


def place(
    weight_UN: Tensor, rows: Prefixes, ranks: int, *, tokens_U: Tensor | None = None, scale: float = 1.0
) -> Placement:
    """The rows with a weight, dealt to ranks: equally many to each in each optimizer step, with similar tokens.

    ``weight_UN`` (U, N) is the weight of each row in each optimizer step, above 0 in one step at most. If the engine
    divides the loss by the tokens that it is sent, ``tokens_U`` (U,) are those of each step's share of the full batch,
    and weights make up for the difference. If it divides by a fixed number, ``scale`` is that number over the
    completions that the step stands for, a factor of all weights. A row with weights in two steps, or too few rows to
    fill up with, are a ``ShapeError``.
    """
    kept_UN = weight_UN > 0
    if bool((kept_UN.sum(0) > 1).any()) or weight_UN.shape[1:] != rows.prompt_N.shape:
        found = f"weights {tuple(weight_UN.shape)} for {len(rows.prompt_N)} rows"
        expected = "expected (steps, rows), and each row in one step only. Place each pass over the batch by itself."
        raise ShapeError(f"{found}: {expected}")
    per_step = max(1, -(-int(kept_UN.sum(1).max()) // ranks)) * ranks
    steps = _filled(kept_UN, rows, per_step)
    weight_N = weight_UN.sum(0) * scale
    if tokens_U is not None:
        tokens_N = rows.tokens_N
        for kept_N, step, tokens in zip(kept_UN, steps, tokens_U.tolist(), strict=True):
            weight_N[kept_N] *= float(tokens_N[step].sum()) / tokens if tokens else 0.0
    row_B = _dealt(steps, rows, ranks)
    return Placement(row_B=row_B, weight_B=weight_N[row_B].float(), rows=rows, rows_per_step=per_step)


def forwarded(placements: Sequence[Placement], rows: Prefixes, ranks: int) -> list[int]:
    """Rows of all placements, each once, in the order of the ranks: passes before the update go over these."""
    if len(placements) == 1:
        return placements[0].row_B
    weight_UN = torch.zeros(1, len(rows.prompt_N))
    weight_UN[0, [row for placement in placements for row in placement.row_B]] = 1.0
    return place(weight_UN, rows, ranks).row_B


def engine_shares(count: int, rows_per_step: int, ranks: int) -> Tensor:
    """(U, N) bool, the mini-batch of each of ``count`` rows if the engine is sent the unchanged batch."""
    share_N = torch.arange(count) % (count // ranks) // (rows_per_step // ranks)
    return share_N == torch.arange(count // rows_per_step)[:, None]


def _filled(kept_UN: Tensor, rows: Prefixes, per_step: int) -> list[list[int]]:
    """The rows of each step with fillers, cheapest first. The emptiest step gets those with tokens to divide by."""
    steps = [kept_N.nonzero()[:, 0].tolist() for kept_N in kept_UN]
    tokens, idle = rows.tokens_N.tolist(), (~kept_UN.any(0)).nonzero()[:, 0].tolist()
    missing = len(steps) * per_step - int(kept_UN.sum())
    if missing > len(idle):
        few = f"{len(steps)} optimizer steps of {per_step} rows need {missing} rows to fill up with"
        raise ShapeError(f"{few}, and {len(idle)} are left. Pad the batch to rows_needed(completions, steps, ranks).")
    for step in sorted(steps, key=len):
        cost_N = rows.length_N
        if rows.group_N is not None:  # a prompt that the step has already is not forwarded again
            cost_N = torch.where(torch.isin(rows.group_N, rows.group_N[step]), rows.completion_N, cost_N)
        cost = cost_N.tolist()
        idle.sort(key=lambda row: (not tokens[row], cost[row]))
        gaps = per_step - len(step)
        step += idle[:gaps]
        del idle[:gaps]
    return steps


def _dealt(steps: Sequence[Sequence[int]], rows: Prefixes, ranks: int) -> list[int]:
    """Rows of all steps, rank after rank: as many of each step, and a similar sum of tokens."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for step in steps:
        order, before = sorted(step), [float(rows.length_N[rank].sum()) for rank in dealt]
        if rows.group_N is None:
            lengths, each = rows.length_N[order].tolist(), len(order) // ranks
            parts = longest_processing_time(lengths, ranks, count=each, ties=before)
        else:
            parts = _whole_groups(order, rows, ranks, before)
        for rank, part in zip(dealt, parts, strict=True):
            rank += [order[at] for at in part]
    return [row for rank in dealt for row in rank]


def _whole_groups(order: list[int], rows: Prefixes, ranks: int, before: list[float]) -> list[list[int]]:
    """Exactly ``ranks`` lists of equal counts and similar costs: the dearest group first, to a rank with room for it.

    The cost of a group is its prompt once and its completions. Of the ranks with room the one is taken whose cost would
    be most in step with its count: small groups have dear rows, and a rank may not get all of them. A group is split
    only if no rank has room for all of it. Each split fills a rank, so there are fewer than ``ranks``.
    """
    assert rows.group_N is not None
    groups: dict[int, list[int]] = {}
    for at, group in enumerate(rows.group_N[order].tolist()):
        groups.setdefault(group, []).append(at)
    prompt, completion = rows.prompt_N[order].tolist(), rows.completion_N[order].tolist()

    def cost(members: list[int]) -> float:
        return prompt[members[0]] + sum(completion[at] for at in members)

    parts: list[list[int]] = [[] for _ in range(ranks)]
    loads, most = [0.0] * ranks, len(order) // ranks
    left = sorted(groups.values(), key=cost)
    mean = sum(map(cost, left)) / ranks
    while left:
        members = left.pop()
        room = [most - len(part) for part in parts]
        open_ranks = [rank for rank in range(ranks) if room[rank] >= len(members)]

        def out_of_step(rank: int, members: list[int] = members) -> tuple[float, float]:
            share, rows_share = (loads[rank] + cost(members)) / mean, (len(parts[rank]) + len(members)) / most
            return abs(share - rows_share) + loads[rank] / mean / 2, before[rank]

        rank = min(open_ranks, key=out_of_step, default=room.index(max(room)))
        members, rest = members[: room[rank]], members[room[rank] :]
        parts[rank] += members
        loads[rank] += cost(members)
        left += [rest] if rest else []
    return parts


def rows_needed(completions: int, steps: int, ranks: int) -> int:
    """Rows of a batch so that any choice can be dealt evenly; ``completions`` are of the largest of the ``steps``."""
    return -(-completions // ranks) * ranks * steps


def places(keys: Mapping[int, str], uid_Q: Sequence[str], size_Q: Sequence[int]) -> list[int]:
    """(N,) the row of each requested completion, or -1 if it failed, in the order of the prompts.

    A batch lists rows in the order in which they were finished; draws must not depend on the speed of a sampler.
    ``keys`` are ``{prompt}_{session}_{output}`` by row; ``uid_Q`` are the requested prompts, of ``size_Q`` completions.
    A second output of a session, or a row of no requested prompt, is a ``ShapeError``.
    """
    slots = [(uid, str(session)) for uid, size in zip(uid_Q, size_Q, strict=True) for session in range(size)]
    row_of = dict.fromkeys(slots, -1)
    for row, key in keys.items():
        uid, session, output = key.rsplit("_", 2)
        if output != "0" or (uid, session) not in row_of:
            other = f"row {key!r} is output {output} of session {session} of prompt {uid!r}"
            served = "only the first output of a requested session is served. Use an agent loop that returns one."
            raise ShapeError(f"{other}: {served}")
        row_of[uid, session] = row
    return list(row_of.values())


def scaled_gradient(value: Tensor, factor: Tensor) -> Tensor:
    """The same ``value``, whose gradient is multiplied by ``factor``, which broadcasts to it."""
    fixed = value.detach()
    return fixed + (value - fixed) * factor
