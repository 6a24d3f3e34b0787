"""Rows of segments: the dense layout, in which no token is padding and a group's prompt is computed once.

A row is a sequence of segments. Of each prompt it holds a *trunk*, the prompt without its last token, and one *branch*
per completion: the prompt's last token, then the completion without its last token. Every position of a branch
predicts the next token of its completion, so labels are one per position and nothing is scored from a neighbour.

    prompt [a b c], completions [x y z] and [u v]

    tokens     a  b | c  x  y | c  u
    positions  0  1 | 2  3  4 | 2  3
    labels     -  - | x  y  z | u  v

All trunks come first, then all branches in the order of their trunks, then completions that share no prompt. Keys of
trunks and queries of branches are then contiguous slices, which attention in two calls needs (``two_calls``).

Source: forking one token early is the layout of TRL's asynchronous trainer (``TreeRow``); leaving out each last token,
from which nothing is predicted, makes a group cost ``(P - 1) + sum(C)`` tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.packing.bins import best_fit_decreasing, split_group
from dppo.packing.transfer import on_device

UNSCORED = -100
"""Label of a position that predicts nothing that is trained on."""


INDICES = ("input_ids", "position_ids", "labels", "scored_L", "completion_L", "offset_L")
"""Tensors of a ``Row``."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The segments that tile a row, in order. A branch sees its trunk and itself, a trunk only itself; all causally."""

    length_S: tuple[int, ...]
    """Tokens of each segment, >= 1."""
    trunk_S: tuple[int, ...]
    """Index of the segment that comes before this one in its sequence; -1 where it begins the sequence."""

    @property
    def total(self) -> int:
        """Tokens of the row."""
        return sum(self.length_S)

    @cached_property
    def past_S(self) -> tuple[int, ...]:
        """Tokens that come before each segment in its sequence: the length of its trunk, or 0."""
        return tuple(0 if trunk < 0 else self.length_S[trunk] for trunk in self.trunk_S)

    @cached_property
    def start_S(self) -> tuple[int, ...]:
        """Where in the row each segment begins."""
        return tuple(accumulate(self.length_S, initial=0))[:-1]

    @cached_property
    def memory(self) -> dict[Any, Any]:
        """Masks and index tensors that kernels compute once and use in every layer: ``once_per_row``."""
        return {}


Attend = Callable[[Tensor, Tensor, Tensor, Segments, float | None, int | None], Tensor]
"""From query (1, H, T, D), key and value (1, Hkv, T, D), segments, scale (None: 1/sqrt(D)) and sliding window (tokens,
None: all) to (1, H, T, D). Hkv divides H."""
Made = TypeVar("Made")


def once_per_row(make: Callable[..., Made]) -> Callable[..., Made]:
    """Keep the results of a function of segments and further arguments in the segments' ``memory``."""

    @wraps(make)
    def made(segments: Segments, *arguments: Any) -> Made:
        key = make, *arguments
        if key not in segments.memory:
            with torch.inference_mode(False):  # a tensor made under it could not be saved for a backward pass
                segments.memory[key] = make(segments, *arguments)
        return segments.memory[key]

    return made


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of T tokens that scores B completions. One row is one forward pass."""

    input_ids: Tensor
    """(1, T) int64."""
    position_ids: Tensor
    """(1, T) int64; they start again at 0 with every prompt."""
    labels: Tensor
    """(1, T) int64, the token each position predicts; ``UNSCORED`` where none is trained on."""
    segments: Segments
    scored_L: Tensor
    """(L,) int64 positions in the row whose label is scored."""
    completion_L: Tensor
    """(L,) int64 in 0..B-1, the completion each of them belongs to."""
    offset_L: Tensor
    """(L,) int64, which token of that completion it predicts."""
    branch_S: tuple[int, ...]
    """The completion of each segment; -1 for a trunk."""
    width: int
    """Tokens of the longest completion."""
    completions: int
    """B."""

    def inputs(self) -> dict[str, Any]:
        """Keyword arguments of a causal language model's forward, besides those of attention and head.

        The 4-D mask is a dummy: given one, transformers builds none of its own, which would be T x T and wrong. It is
        NaN, so that an attention that adds it instead of looking at segments gives NaN, not plausible numbers.
        """
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": torch.full((1, 1, 1, 1), torch.nan, device=self.input_ids.device),
            "shift_labels": self.labels,
            "use_cache": False,
        }

    @property
    def indices(self) -> list[Tensor]:
        """Its integer tensors, which ``moved`` takes back from another device."""
        return [getattr(self, name) for name in INDICES]

    def moved(self, indices: Sequence[Tensor]) -> "Row":
        """The row with other ``indices``."""
        return replace(self, **dict(zip(INDICES, indices, strict=True)))

    def weight_of_positions(self, weight_B: Tensor) -> Tensor:
        """(1, T) the weight of each position: that of its completion, in a trunk the sum over those that share it."""
        # Indices are made on the host: a boolean index of a device's tensor would wait for the device.
        branches = [s for s, completion in enumerate(self.branch_S) if completion >= 0]
        forked = [s for s, trunk in enumerate(self.segments.trunk_S) if trunk >= 0]
        indices = on_device(
            [
                torch.tensor(branches),
                torch.tensor([self.branch_S[s] for s in branches]),
                torch.tensor(forked, dtype=torch.int64),
                torch.tensor([self.segments.trunk_S[s] for s in forked], dtype=torch.int64),
                torch.tensor(self.segments.length_S),
            ],
            weight_B.device,
        )
        branch, completion, fork, trunk, length_S = indices
        weight_S = weight_B.new_zeros(len(self.branch_S)).index_copy(0, branch, weight_B[completion])
        weight_S = weight_S.index_add(0, trunk, weight_S[fork])
        return weight_S.repeat_interleave(length_S, output_size=self.segments.total)[None]

    def unpack(self, value_1T: Tensor, width: int) -> Tensor:
        """(B, width) values of the scored tokens at their places in their completions, 0 elsewhere; differentiable.

        A smaller width than the longest completion's would put values into the wrong completion.
        """
        if width < self.width:
            raise ShapeError(f"width={width} is less than the longest completion. Use width={self.width} or more.")
        place_L = self.completion_L * width + self.offset_L
        flat = value_1T.new_zeros(self.completions * width)
        return flat.index_put((place_L,), value_1T[0, self.scored_L]).view(self.completions, width)


def plan_rows(
    group_N: Sequence[int],
    prompt_tokens_N: Sequence[int],
    completion_tokens_N: Sequence[int],
    max_tokens: int,
    *,
    whole: bool = False,
) -> list[list[int]]:
    """Which completions share a row: lists of indices, those of a group next to each other.

    Groups are kept whole where a row has room for them, split into the fewest parts where not, and the parts are
    packed best-fit-decreasing. A completion that does not fit by itself gets a row of its own: nothing is cut. With
    ``whole`` so does a group, which is never split.
    With all group numbers different prompts are not shared, which is what other trainers call packing. Completions of 0
    tokens are in no row.
    """
    members: dict[int, list[int]] = {}
    for index, (group, tokens) in enumerate(zip(group_N, completion_tokens_N, strict=True)):
        if tokens:
            members.setdefault(group, []).append(index)
    parts, costs = [], []
    for indices in members.values():
        trunk = prompt_tokens_N[indices[0]] - 1
        sizes = [completion_tokens_N[i] for i in indices]
        for part in [[*range(len(sizes))]] if whole else split_group(trunk, sizes, max_tokens):
            parts.append([indices[i] for i in part])
            costs.append(trunk + sum(sizes[i] for i in part))
    # Sorted by group, so that two parts of one group that meet in a row share the trunk after all.
    rows = best_fit_decreasing(costs, max_tokens)
    return [sorted((i for part in row for i in parts[part]), key=lambda i: (group_N[i], i)) for row in rows]


def row_tokens(
    group_N: Sequence[int],
    prompt_tokens_N: Sequence[int],
    completion_tokens_N: Sequence[int],
    rows: Sequence[Sequence[int]],
) -> int:
    """Tokens that a forward over ``rows`` computes: of every group in a row ``P - 1``, and all completions."""
    trunks = sum(
        prompt_tokens_N[next(members)] - 1 for row in rows for _, members in groupby(row, key=group_N.__getitem__)
    )
    return trunks + sum(completion_tokens_N[i] for row in rows for i in row)


def build_row(
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    group: Sequence[int],
    scored: Sequence[Tensor] | None = None,
    *,
    last_tokens: bool = False,
) -> Row:
    """The row of the given completions.

    Args:
        prompts: B tensors (P_k,) of token ids, P_k >= 1, all on one device.
        completions: B tensors (C_k,) of token ids; one of 0 tokens takes no place.
        group: (B,) numbers; neighbours with the same number share the first one's prompt.
        scored: B tensors (C_k,) bool, the tokens that carry loss; all by default.
        last_tokens: whether each completion's last token, from which nothing is predicted, has a place too: for losses
            over all tokens. A group then costs ``(P - 1) + sum(C + 1)`` tokens.

    Raises:
        ShapeError: if the arguments differ in length, a prompt is empty, or there is not one token to forward.
    """
    _check_row(prompts, completions, group)
    trunks: list[_Piece] = []
    branches: list[_Piece] = []
    alone: list[_Piece] = []
    for _, same in groupby(range(len(group)), key=group.__getitem__):
        members = [k for k in same if len(completions[k])]
        if not members:
            continue
        prompt = prompts[members[0]]
        shared = len(prompt) - 1 if len(members) > 1 else 0  # alone, prompt and completion are one segment
        if shared:
            trunks.append(_Piece((prompt[:-1],), lead=shared))
        trunk = len(trunks) - 1 if shared else -1
        for k in members:
            own = completions[k] if last_tokens else completions[k][:-1]
            piece = _Piece((prompt[shared:], own), len(prompt) - shared - 1, trunk, k)
            (branches if shared else alone).append(piece)
    pieces = trunks + branches + alone
    layout = Segments(length_S=tuple(piece.length for piece in pieces), trunk_S=tuple(piece.trunk for piece in pieces))
    tokens_T = torch.cat([part for piece in pieces for part in piece.tokens])
    lead_S, branch_S = [piece.lead for piece in pieces], [piece.completion for piece in pieces]
    return _row(tokens_T, layout, lead_S, branch_S, completions, scored)


class _Piece(NamedTuple):
    """One segment of a row that is being built."""

    tokens: tuple[Tensor, ...]
    lead: int
    """Tokens before its first label."""
    trunk: int = -1
    completion: int = -1

    @property
    def length(self) -> int:
        return sum(map(len, self.tokens))


def _row(
    tokens_T: Tensor,
    segments: Segments,
    lead_S: list[int],
    branch_S: list[int],
    completions: Sequence[Tensor],
    scored: Sequence[Tensor] | None,
) -> Row:
    """Positions, labels and the way back, for tokens that are laid out."""
    branches, branch_B = [s for s, k in enumerate(branch_S) if k >= 0], [k for k in branch_S if k >= 0]
    length = torch.tensor([len(completions[k]) for k in branch_B])
    first = torch.tensor([segments.start_S[s] + lead_S[s] for s in branches])
    offset_L = _counted(length)
    place_L = first.repeat_interleave(length) + offset_L
    completion_L = torch.tensor(branch_B).repeat_interleave(length)
    position_T = torch.tensor(segments.past_S).repeat_interleave(lengths := torch.tensor(segments.length_S))
    position_T = position_T + _counted(lengths)

    device = tokens_T.device
    target_L = torch.cat([completions[k] for k in branch_B])
    if scored is not None:
        carries_L = torch.cat([scored[k] for k in branch_B]).to(device).bool()
        target_L = target_L.masked_fill(~carries_L, UNSCORED)
        kept = carries_L.cpu()
        back = place_L[kept], completion_L[kept], offset_L[kept]
    else:
        back = place_L, completion_L, offset_L
    # No transfer waits for what the device has still to do: from memory that is not pinned this is safe.
    labels_T = torch.full_like(tokens_T, UNSCORED).index_put((place_L.to(device, non_blocking=True),), target_L)
    place, completion, offset = (x.to(device, non_blocking=True) for x in back)
    return Row(
        input_ids=tokens_T[None],
        position_ids=position_T.to(device, non_blocking=True)[None],
        labels=labels_T[None],
        segments=segments,
        scored_L=place,
        completion_L=completion,
        offset_L=offset,
        branch_S=tuple(branch_S),
        width=int(length.max()),
        completions=len(completions),
    )


def _counted(length_S: Tensor) -> Tensor:
    """0, 1, .. within each segment, one after the other."""
    ends = length_S.cumsum(0)
    return torch.arange(int(ends[-1])) - (ends - length_S).repeat_interleave(length_S)


def _check_row(prompts: Sequence[Tensor], completions: Sequence[Tensor], group: Sequence[int]) -> None:
    counts = {len(prompts), len(completions), len(group)}
    if len(counts) > 1:
        raise ShapeError(
            f"{len(prompts)} prompts, {len(completions)} completions and {len(group)} group numbers: give one of each "
            "per completion."
        )
    empty = next((k for k, prompt in enumerate(prompts) if not len(prompt)), None)
    if empty is not None:
        raise ShapeError(f"prompt {empty} has no token. A completion needs one to start from: give it at least one.")
    # Tokens of neighbours that share a prompt are not compared: that would wait for the device.
    same = (k for k in range(1, len(group)) if group[k] == group[k - 1])
    unlike = next((k for k in same if len(prompts[k]) != len(prompts[k - 1])), None)
    if unlike is not None:
        raise ShapeError(
            f"completions {unlike - 1} and {unlike} have group number {group[unlike]}, but prompts of "
            f"{len(prompts[unlike - 1])} and {len(prompts[unlike])} tokens. Give the same number to equal prompts only."
        )
    if not any(len(completion) for completion in completions):
        raise ShapeError(f"none of the {len(completions)} completions has a token. Leave empty ones out of the row.")
