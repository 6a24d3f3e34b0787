"""Attention kernels for CUDA in half precision. Probed against plain SDPA before use (``kernels.probe``).

Variable-length kernels take queries as they lie in the row and keys and values gathered per segment, so that a trunk
is repeated in front of each of its branches: ``(k - 1) * (P - 1)`` extra rows of keys, little next to the queries.
Their gradients come back by index addition, which in half precision does not add in a fixed order.
"""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dppo.packing.rows import Segments
from dppo.packing.varlen_kernels import flash2, flash3


class Gathered(NamedTuple):
    """Where each segment's queries and keys lie, as variable-length kernels want it."""

    key_index: Tensor
    """int64, one for each key: for every segment its trunk's positions in the row, then its own."""
    query_ends: Tensor
    """(S + 1,) int32 cumulative queries, beginning with 0."""
    key_ends: Tensor
    """(S + 1,) int32 cumulative keys, beginning with 0."""
    most_queries: int
    most_keys: int


@torch.inference_mode(False)  # what is made under it could not be saved for a backward pass
def gathered(segments: Segments, device: torch.device) -> Gathered:
    """Index tensors of ``segments`` on ``device``; made once per row."""
    if (found := segments.memory.get(("gathered", device))) is not None:
        return found
    start, length = segments.start_S, segments.length_S
    pieces, seen = [], []
    for s, trunk in enumerate(segments.trunk_S):
        if trunk >= 0:
            pieces.append(torch.arange(start[trunk], start[trunk] + length[trunk]))
        pieces.append(torch.arange(start[s], start[s] + length[s]))
        seen.append(segments.past_S[s] + length[s])

    def ends(counts: list[int]) -> Tensor:
        return torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32, non_blocking=True)

    index = torch.cat(pieces).to(device, non_blocking=True)
    result = Gathered(index, ends(list(length)), ends(seen), max(length), max(seen))
    segments.memory["gathered", device] = result
    return result


def torch_varlen(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by torch's own variable-length flash kernel, of torch 2.11 or newer."""
    from torch.nn.attention.varlen import varlen_attn

    groups = _has_groups(varlen_attn)
    options = {"scale": scale, "window_size": _reach(window)} | ({"enable_gqa": True} if groups else {})
    return _over_gathered_keys(varlen_attn, query, key, value, segments, options, groups=groups)


@cache
def _has_groups(function: Callable[..., Any]) -> bool:
    """Whether queries' heads may share a key: torch 2.11 wants one for each."""
    return "enable_gqa" in signature(function).parameters


def flash_varlen(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by flash-attn's variable-length kernel, 2.1 or newer (bottom-right causal mask)."""
    options = {"softmax_scale": scale, "window_size": _reach(window), "causal": True}
    return _over_gathered_keys(flash2().flash_attn_varlen_func, query, key, value, segments, options)


def flash3_varlen(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by flash-attn 3's variable-length kernel."""
    options = {"softmax_scale": scale, "window_size": _reach(window), "causal": True}
    return _over_gathered_keys(flash3().flash_attn_varlen_func, query, key, value, segments, options)


def _reach(window: int | None) -> tuple[int, int]:
    """Tokens to the left and to the right that a query sees besides its own; -1: all."""
    return (-1 if window is None else window - 1, 0)


def _over_gathered_keys(
    function: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    options: dict[str, Any],
    *,
    groups: bool = True,
) -> Tensor:
    """A variable-length ``function`` on queries as they lie, and on keys and values gathered per segment.

    Without ``groups`` keys and values are repeated for every query's head.
    """
    repeat = 1 if groups else query.shape[1] // key.shape[1]
    where = gathered(segments, query.device)
    key, value = (x[0].transpose(0, 1) for x in (key, value))
    if max(segments.trunk_S) >= 0:  # otherwise keys lie as they are wanted
        key, value = (x.index_select(0, where.key_index) for x in (key, value))
    if repeat > 1:
        key, value = (x.repeat_interleave(repeat, 1) for x in (key, value))
    key, value = key.contiguous(), value.contiguous()
    query = query[0].transpose(0, 1).contiguous()
    ends = (where.query_ends, where.key_ends, where.most_queries, where.most_keys)
    output = function(query, key, value, *ends, **options)
    return (output[0] if isinstance(output, tuple) else output).transpose(0, 1)[None]


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def compiled_flex(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by torch's compiled flex attention; compiles on first use."""
    mask = block_mask(segments, window, query.device)
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)


@torch.inference_mode(False)
def block_mask(segments: Segments, window: int | None, device: torch.device) -> Any:
    """The block mask of ``segments`` for flex attention; made once per row and window."""
    from torch.nn.attention.flex_attention import create_block_mask

    memory_key = ("block mask", device, window)
    if memory_key in segments.memory:
        return segments.memory[memory_key]
    lengths = torch.tensor(segments.length_S)

    def per_token(value_S: Any) -> Tensor:
        return torch.as_tensor(value_S).repeat_interleave(lengths).to(device, non_blocking=True)

    own_T, trunk_T = per_token(range(len(lengths))), per_token(segments.trunk_S)
    past_T, start_T = per_token(segments.past_S), per_token(segments.start_S)
    position_T = torch.arange(segments.total, device=device) - start_T + past_T
    reach = segments.total if window is None else window

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        related = (own_T[q] == own_T[k]) | (trunk_T[q] == own_T[k])
        return related & (q >= k) & (position_T[q] - position_T[k] < reach)

    # Compiled, it never makes the mask of all pairs, which takes gigabytes for long rows.
    create = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    mask = create(visible, None, None, segments.total, segments.total, str(device))
    segments.memory[memory_key] = mask
    return mask
