"""Attention kernels for CUDA in half precision: variable-length kernels in two calls or in one, and flex attention.

Their passes are private functions, so ``kernels.probe`` compares each with plain SDPA before use. In one call keys and
values are gathered per segment: a trunk is repeated for each of its branches. Their gradients come back by index
addition, which in half precision does not add in a fixed order.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dppo.packing.rows import Attend, Segments, counted, once_per_row
from dppo.packing.two_calls import Call, Pieces, in_two_calls


class TorchVarlen:
    """Both passes of the flash kernel behind ``torch.nn.attention.varlen``, of torch 2.11 or newer."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        run: Any = torch.ops.aten._flash_attention_forward
        output, lse, *_ = run(query, key, value, *call.pieces, 0.0, call.causal, False, scale=call.scale)
        return output, lse

    def backward(self, grad: Tensor, saved: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
        run: Any = torch.ops.aten._flash_attention_backward
        seed = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of dropout, which is off
        unused = torch.empty(0, device=grad.device)
        return run(grad, *saved, *call.pieces, 0.0, call.causal, seed, unused, scale=call.scale)


class Flash2:
    """Both passes of flash-attn 2.7 or newer."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        options = {"dropout_p": 0.0, "softmax_scale": call.scale, "causal": call.causal}
        output, lse, *_ = flash_attn(2)._flash_attn_varlen_forward(query, key, value, *call.pieces, **options)
        return output, lse

    def backward(self, grad: Tensor, saved: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
        found = [torch.empty_like(x) for x in saved[:3]]
        flash_attn(2)._flash_attn_varlen_backward(
            grad, *saved, *found, *call.pieces, dropout_p=0.0, softmax_scale=call.scale, causal=call.causal,
            window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False,
        )  # fmt: skip
        return found


class Flash3:
    """Both passes of flash-attn 3."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        options = {"softmax_scale": call.scale, "causal": call.causal}
        output, lse, *_ = flash_attn(3)._flash_attn_forward(query, key, value, **call.pieces._asdict(), **options)
        return output, lse

    def backward(self, grad: Tensor, saved: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
        dq, dk, dv = found = [torch.empty_like(x) for x in saved[:3]]
        options = {"softmax_scale": call.scale, "is_causal": call.causal}
        flash_attn(3)._flash_attn_backward(grad, *saved, **call.pieces._asdict(), dq=dq, dk=dk, dv=dv, **options)
        return found


@cache
def flash_attn(version: int) -> Any:
    """The functions of flash-attn 2 or 3: as installed, or from the ``kernels`` package."""
    if version == 3 and torch.cuda.get_device_capability() != (9, 0):  # a kernel would be downloaded in vain
        raise RuntimeError("it needs a GPU of compute capability 9.0")
    try:
        return import_module("flash_attn_interface" if version == 3 else "flash_attn.flash_attn_interface")
    except ImportError:
        options = {"version": 1} if version == 3 else {}
        hub = import_module("kernels")
        return hub.get_kernel(f"kernels-community/flash-attn{version}", **options).flash_attn_interface


def torch_varlen(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention in one call of torch's variable-length flash kernel, of torch 2.11 or newer."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scale}
    if _has_groups(varlen_attn):
        options["enable_gqa"] = True
    else:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return _over_gathered_keys(varlen_attn, query, key, value, segments, window, **options)


@cache
def _has_groups(function: Callable[..., Any]) -> bool:
    """True if several heads of queries may share a head of keys; torch 2.11 needs one for each."""
    return "enable_gqa" in signature(function).parameters


def flash_varlen(version: int) -> Attend:
    """Attention in one call of flash-attn 3, or of flash-attn 2.1 or newer (bottom-right causal mask)."""

    def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None, window: int | None) -> Tensor:
        options = {"softmax_scale": scale, "causal": True}
        return _over_gathered_keys(flash_attn(version).flash_attn_varlen_func, q, k, v, segments, window, **options)

    return attend


def _over_gathered_keys(
    function: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, window: int | None, **options: Any
) -> Tensor:
    """A variable-length ``function`` on queries in their place, and on keys and values gathered per segment."""
    index, pieces = gathered(segments, query.device)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    if max(segments.trunk_S) >= 0:  # otherwise every key is in its place already
        key, value = (x.index_select(0, index) for x in (key, value))
    reach = (-1 if window is None else window - 1, 0)  # to the left and right, besides the query's own; -1: all
    output = function(*(x.contiguous() for x in (query, key, value)), *pieces, window_size=reach, **options)
    return (output[0] if isinstance(output, tuple) else output).transpose(0, 1)[None]


@once_per_row
def gathered(segments: Segments, device: torch.device) -> tuple[Tensor, Pieces]:
    """Positions (K,) int64 in the row of each segment's keys, its trunk's and then its own, and the pieces."""
    place_S = torch.arange(segments.total).split(list(segments.length_S))
    key_S = [torch.cat([place_S[t], own]) if t >= 0 else own for t, own in zip(segments.trunk_S, place_S, strict=True)]
    pieces = Pieces.of_counts(segments.length_S, list(map(len, key_S)), device)
    return torch.cat(key_S).to(device, non_blocking=True), pieces


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=True)


def compiled_flex(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by torch's compiled flex attention; compiles on first use."""
    mask = block_mask(segments, window, query.device)
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)


@once_per_row
def block_mask(segments: Segments, window: int | None, device: torch.device) -> Any:
    lengths = torch.tensor(segments.length_S)
    own_T = torch.arange(len(lengths)).repeat_interleave(lengths)
    trunk_T = torch.tensor(segments.trunk_S).repeat_interleave(lengths)
    position_T = counted(segments.past_S, segments.length_S)
    own_T, trunk_T, position_T = (x.to(device, non_blocking=True) for x in (own_T, trunk_T, position_T))
    reach = segments.total if window is None else window

    def visible(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        related = (own_T[q] == own_T[k]) | (trunk_T[q] == own_T[k])
        return related & (q >= k) & (position_T[q] - position_T[k] < reach)

    # Compiled, it never makes the mask of all pairs, which takes gigabytes for long rows.
    create = torch.compile(create_block_mask) if device.type == "cuda" else create_block_mask
    return create(visible, None, None, segments.total, segments.total, str(device))


CUDA_KERNELS: dict[str, Attend] = {
    "flash-attn 3 in two calls": in_two_calls(Flash3(), flash_varlen(3)),
    "torch varlen in two calls": in_two_calls(TorchVarlen(), torch_varlen),
    "flash-attn 2 in two calls": in_two_calls(Flash2(), flash_varlen(2)),
    "torch varlen": torch_varlen,
    "flash-attn varlen": flash_varlen(2),
    "flex": compiled_flex,
}
"""Attention by the name of its kernel, best first."""
