"""Rows of segments: the dense layout, in which no token is padding and a group's prompt is computed once.

Of each prompt a row holds a *trunk*, the prompt without its last token, and one *branch* per completion: the prompt's
last token, then the completion without its last token. Every position of a branch predicts the next token.

    prompt [a b c], completions [x y z] and [u v]

    tokens     a  b | c  x  y | c  u
    positions  0  1 | 2  3  4 | 2  3
    labels     -  - | x  y  z | u  v

All trunks come first, then all branches in the order of their trunks, then completions that share no prompt: attention
in two calls (``two_calls``) needs contiguous slices. A group costs ``(P - 1) + sum(C)`` tokens.

Source: forking one token early is the layout of TRL's asynchronous trainer (``TreeRow``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import accumulate, groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.packing.bins import best_fit_decreasing, split_group

UNSCORED = -100
"""Label of a position without a loss."""
INDICES = ("input_ids", "position_ids", "labels", "scored_L", "completion_L", "offset_L")
"""Integer tensors of a ``Row``."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The segments of a row, in order. A branch attends causally to its trunk and itself, others to themselves."""

    length_S: tuple[int, ...]
    """Tokens of each segment, >= 1."""
    trunk_S: tuple[int, ...]
    """Index of each segment's trunk; -1 for a segment that begins its sequence."""

    @property
    def total(self) -> int:
        """Tokens of the row."""
        return sum(self.length_S)

    @cached_property
    def past_S(self) -> tuple[int, ...]:
        """Tokens before each segment in its sequence: the length of its trunk, or 0."""
        return tuple(0 if trunk < 0 else self.length_S[trunk] for trunk in self.trunk_S)

    @cached_property
    def memory(self) -> dict[Any, Any]:
        """Results of ``once_per_row``: masks and index tensors that every layer uses."""
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


def on_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of the host, of one dtype, on ``device``, by one copy, pinned for a GPU: else the host would wait."""
    if device.type == "cpu" or not tensors:
        return list(tensors)
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    if device.type == "cuda":
        flat = flat.pin_memory()
    parts = flat.to(device, non_blocking=True).split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of T tokens that scores B completions. One row is one forward pass."""

    input_ids: Tensor
    """(1, T) int64."""
    position_ids: Tensor
    """(1, T) int64; they start again at 0 with every prompt."""
    labels: Tensor
    """(1, T) int64, the token that each position predicts; ``UNSCORED`` without a loss."""
    segments: Segments
    scored_L: Tensor
    """(L,) int64 places in the row whose label is scored."""
    completion_L: Tensor
    """(L,) int64 in 0..B-1, the completion each of them belongs to."""
    offset_L: Tensor
    """(L,) int64 number of the predicted token in that completion."""
    branch_S: tuple[int, ...]
    """The completion of each segment; -1 for a trunk."""
    width: int
    """Tokens of the longest completion."""
    completions: int
    """B."""

    @property
    def indices(self) -> list[Tensor]:
        """The integer tensors, which ``moved`` takes back from another device."""
        return [getattr(self, name) for name in INDICES]

    def moved(self, indices: Sequence[Tensor]) -> "Row":
        """The row with other ``indices``."""
        return replace(self, **dict(zip(INDICES, indices, strict=True)))

    def weight_of_positions(self, weight_B: Tensor) -> Tensor:
        """(1, T) weight of each position: that of its completion, in a trunk the sum over the completions behind it."""
        branches = [(s, k) for s, k in enumerate(self.branch_S) if k >= 0]
        shared = [(self.segments.trunk_S[s], k) for s, k in branches if self.segments.trunk_S[s] >= 0]
        # Indices are made on the host, because a boolean index of a device's tensor would wait for the device.
        indices = [*torch.tensor(branches + shared).T, torch.tensor(self.segments.length_S)]
        segment, completion, length_S = on_device(indices, weight_B.device)
        weight_S = weight_B.new_zeros(len(self.branch_S)).index_add(0, segment, weight_B[completion])
        return weight_S.repeat_interleave(length_S, output_size=self.segments.total)[None]

    def unpack(self, value_1T: Tensor, width: int) -> Tensor:
        """(B, width) values of the scored tokens at their places in their completions, 0 elsewhere; differentiable.

        Raises:
            ShapeError: the width is below the longest completion's, so values would go to the wrong completion.
        """
        if width < self.width:
            raise ShapeError(f"width={width} is less than the longest completion. Use width={self.width} or more.")
        start_B = torch.arange(self.completions, device=value_1T.device) * width
        return self.placed(value_1T, start_B, self.completions * width).view(self.completions, width)

    def placed(self, value_1T: Tensor, start_B: Tensor, total: int) -> Tensor:
        """(total,) values of the scored tokens, each completion's from its start, 0 elsewhere; differentiable."""
        flat = value_1T.new_zeros(total)
        return flat.index_put((start_B[self.completion_L] + self.offset_L,), value_1T[0, self.scored_L])


def plan_rows(
    group_N: Sequence[int],
    prompt_tokens_N: Sequence[int],
    completion_tokens_N: Sequence[int],
    max_tokens: int,
    *,
    whole: bool = False,
) -> list[list[int]]:
    """Indices of the completions of each row; those of a group are neighbours.

    A group is split into the fewest parts if a row has no room for it; with ``whole`` it is never split. Parts are
    packed best-fit-decreasing. A completion, or a whole group, that does not fit is alone in its row. Completions of 0
    tokens are in no row.
    """
    members: dict[int, list[int]] = {}
    for index, (group, tokens) in enumerate(zip(group_N, completion_tokens_N, strict=True)):
        if tokens:
            members.setdefault(group, []).append(index)
    parts: list[list[int]] = []
    for indices in members.values():
        sizes = [completion_tokens_N[i] for i in indices]
        split = [range(len(sizes))] if whole else split_group(prompt_tokens_N[indices[0]] - 1, sizes, max_tokens)
        parts += [[indices[i] for i in part] for part in split]
    costs = [row_tokens(group_N, prompt_tokens_N, completion_tokens_N, [part]) for part in parts]
    # Sorted by group, so that two parts of one group that meet in a row share the trunk after all.
    rows = best_fit_decreasing(costs, max_tokens)
    return [sorted((i for part in row for i in parts[part]), key=lambda i: (group_N[i], i)) for row in rows]


def row_tokens(
    group_N: Sequence[int],
    prompt_tokens_N: Sequence[int],
    completion_tokens_N: Sequence[int],
    rows: Sequence[Sequence[int]],
) -> int:
    """Tokens of a forward pass over ``rows``: ``P - 1`` for every group in a row, and all completions."""
    firsts = [next(members) for row in rows for _, members in groupby(row, key=group_N.__getitem__)]
    return sum(prompt_tokens_N[i] - 1 for i in firsts) + sum(completion_tokens_N[i] for row in rows for i in row)


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
        last_tokens: True for losses over all tokens: each completion's last token has a place too.

    Raises:
        ShapeError: the arguments differ in length, a prompt is empty, or there is no token to forward.
    """
    _check_row(prompts, completions, group)
    trunks, branches = _forked(prompts, completions, group)
    end = None if last_tokens else -1
    parts_S = [(trunk,) for trunk in trunks] + [(prompt, completions[k][:end]) for prompt, _, k in branches]
    length_S = tuple(sum(map(len, parts)) for parts in parts_S)
    segments = Segments(length_S=length_S, trunk_S=(*[-1] * len(trunks), *(trunk for _, trunk, _ in branches)))
    branch_B = [k for _, _, k in branches]
    length_B = [len(completions[k]) for k in branch_B]
    end_B = [*accumulate(length_S)][len(trunks) :]
    # Place, completion and number in it of each label. A branch ends with its labels (and a last token).
    indices = [
        counted([end - length - last_tokens for end, length in zip(end_B, length_B, strict=True)], length_B),
        torch.tensor(branch_B).repeat_interleave(torch.tensor(length_B)),
        counted([0] * len(branches), length_B),
    ]
    target_L = torch.cat([completions[k] for k in branch_B])
    if scored is not None:
        carries_L = torch.cat([scored[k] for k in branch_B]).bool()
        indices, target_L = [index[carries_L.cpu()] for index in indices], target_L[carries_L]
    indices.append(counted(segments.past_S, segments.length_S))
    tokens_T = torch.cat([part for parts in parts_S for part in parts])
    # No transfer waits for the work of the device: from memory that is not pinned this is safe.
    scored_L, completion_L, offset_L, position_T = (index.to(tokens_T.device, non_blocking=True) for index in indices)
    return Row(
        input_ids=tokens_T[None],
        position_ids=position_T[None],
        labels=torch.full_like(tokens_T, UNSCORED).index_put((scored_L,), target_L)[None],
        segments=segments,
        scored_L=scored_L,
        completion_L=completion_L,
        offset_L=offset_L,
        branch_S=(*[-1] * len(trunks), *branch_B),
        width=max(length_B),
        completions=len(completions),
    )


def _forked(
    prompts: Sequence[Tensor], completions: Sequence[Tensor], group: Sequence[int]
) -> tuple[list[Tensor], list[tuple[Tensor, int, int]]]:
    """Trunks, and prompt tokens, trunk (or -1) and completion of each branch. Branches without a trunk come last."""
    trunks: list[Tensor] = []
    branches: list[tuple[Tensor, int, int]] = []
    for _, same in groupby(range(len(group)), key=group.__getitem__):
        members = [k for k in same if len(completions[k])]
        if not members:
            continue
        prompt, trunk = prompts[members[0]], -1
        if len(members) > 1 and len(prompt) > 1:
            trunks.append(prompt[:-1])
            prompt, trunk = prompt[-1:], len(trunks) - 1
        branches += [(prompt, trunk, k) for k in members]
    return trunks, sorted(branches, key=lambda branch: branch[1] < 0)


def counted(first_S: Sequence[int], length_S: Sequence[int]) -> Tensor:
    """(T,) integers ``first, first + 1, ..`` of each segment, one segment after the other."""
    lengths = torch.tensor(length_S)
    start_S = torch.tensor(first_S) - lengths.cumsum(0) + lengths
    return torch.arange(sum(length_S)) + start_S.repeat_interleave(lengths)


def _check_row(prompts: Sequence[Tensor], completions: Sequence[Tensor], group: Sequence[int]) -> None:
    if not len(prompts) == len(completions) == len(group):
        raise ShapeError(
            f"{len(prompts)} prompts, {len(completions)} completions and {len(group)} group numbers: give one of each."
        )
    for k, prompt in enumerate(prompts):
        if not len(prompt):
            raise ShapeError(f"prompt {k} has no token. Give it at least one.")
        # Tokens of neighbours that share a prompt are not compared, because that would wait for the device.
        if k and group[k] == group[k - 1] and len(prompt) != len(prompts[k - 1]):
            raise ShapeError(
                f"completions {k - 1} and {k} have group number {group[k]}, but prompts of {len(prompts[k - 1])} and "
                f"{len(prompt)} tokens. Give the same number to equal prompts only."
            )
    if not any(map(len, completions)):
        raise ShapeError(f"none of the {len(completions)} completions has a token. Leave empty completions out.")
