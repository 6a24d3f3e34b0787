"""Attention kernels for CUDA in half precision: variable-length kernels in two calls or in one, and flex attention.

Their passes are private functions, so ``kernels.probe`` compares each with plain SDPA before use. In one call keys and
values are gathered per segment: a trunk is repeated for each of its branches. Their gradients come back by index
addition, which in half precision does not add in a fixed order.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from dppo.packing.rows import Attend, Segments, once_per_row
from dppo.packing.two_calls import Call, Pieces, in_two_calls


class TorchVarlen:
    """Both passes of the flash kernel behind ``torch.nn.attention.varlen``, of torch 2.11 or newer."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        run: Any = torch.ops.aten._flash_attention_forward
        output, lse, *_ = run(query, key, value, *call.pieces, 0.0, call.causal, False, scale=call.scale)
        return output, lse

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, call: Call
    ) -> tuple[Tensor, Tensor, Tensor]:
        run: Any = torch.ops.aten._flash_attention_backward
        seed = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of dropout, which is off
        saved, unused = (query, key, value, output, lse), torch.empty(0, device=query.device)
        return run(grad, *saved, *call.pieces, 0.0, call.causal, seed, unused, scale=call.scale)


class Flash2:
    """Both passes of flash-attn 2.7 or newer."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        options = {"dropout_p": 0.0, "softmax_scale": call.scale, "causal": call.causal}
        output, lse, *_ = flash2()._flash_attn_varlen_forward(query, key, value, *call.pieces, **options)
        return output, lse

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, call: Call
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        flash2()._flash_attn_varlen_backward(
            grad, query, key, value, output, lse, *found, *call.pieces, dropout_p=0.0, softmax_scale=call.scale,
            causal=call.causal, window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
            deterministic=False,
        )  # fmt: skip
        return found


class Flash3:
    """Both passes of flash-attn 3."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        output, lse, *_ = flash3()._flash_attn_forward(
            query, key, value, **_named(call.pieces), softmax_scale=call.scale, causal=call.causal
        )
        return output, lse

    def backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, lse: Tensor, call: Call
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        flash3()._flash_attn_backward(
            grad, query, key, value, output, lse, **_named(call.pieces), dq=found[0], dk=found[1], dv=found[2],
            softmax_scale=call.scale, is_causal=call.causal,
        )  # fmt: skip
        return found


def _named(pieces: Pieces) -> dict[str, Any]:
    """Pieces as keyword arguments of flash-attn 3."""
    return dict(zip(("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), pieces, strict=True))


@cache
def flash2() -> Any:
    """flash-attn 2's module of functions."""
    return _functions("flash_attn.flash_attn_interface", "flash-attn2")


@cache
def flash3() -> Any:
    """flash-attn 3's module of functions. The GPU is checked first: elsewhere a kernel would be downloaded in vain."""
    if torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError("it needs a GPU of compute capability 9.0")
    return _functions("flash_attn_interface", "flash-attn3", version=1)


def _functions(module: str, name: str, **version: int) -> Any:
    """A module of functions: as installed, or from the ``kernels`` package."""
    try:
        return import_module(module)
    except ImportError:
        return import_module("kernels").get_kernel(f"kernels-community/{name}", **version).flash_attn_interface


def torch_varlen(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention in one call of torch's variable-length flash kernel, of torch 2.11 or newer."""
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scale, "window_size": _reach(window)}
    if _has_groups(varlen_attn):
        options["enable_gqa"] = True
    else:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return _over_gathered_keys(varlen_attn, query, key, value, segments, options)


@cache
def _has_groups(function: Callable[..., Any]) -> bool:
    """True if several heads of queries may share a head of keys; torch 2.11 needs one for each."""
    return "enable_gqa" in signature(function).parameters


def flash_varlen(functions: Callable[[], Any]) -> Attend:
    """Attention in one call of flash-attn 3, or of flash-attn 2.1 or newer (bottom-right causal mask)."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
    ) -> Tensor:
        options = {"softmax_scale": scale, "window_size": _reach(window), "causal": True}
        return _over_gathered_keys(functions().flash_attn_varlen_func, query, key, value, segments, options)

    return attend


def _reach(window: int | None) -> tuple[int, int]:
    """Tokens to the left and to the right that a query sees besides its own; -1: all."""
    return (-1 if window is None else window - 1, 0)


def _over_gathered_keys(
    function: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, segments: Segments, options: dict[str, Any]
) -> Tensor:
    """A variable-length ``function`` on queries in their place, and on keys and values gathered per segment."""
    index, pieces = gathered(segments, query.device)
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    if max(segments.trunk_S) >= 0:  # otherwise every key is in its place already
        key, value = (x.index_select(0, index) for x in (key, value))
    output = function(query.contiguous(), key.contiguous(), value.contiguous(), *pieces, **options)
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
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def compiled_flex(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by torch's compiled flex attention; compiles on first use."""
    mask = block_mask(segments, window, query.device)
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)


@once_per_row
def block_mask(segments: Segments, window: int | None, device: torch.device) -> Any:
    """The block mask of ``segments`` for flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

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
    return create(visible, None, None, segments.total, segments.total, str(device))


CUDA_KERNELS: dict[str, Attend] = {
    "flash-attn 3 in two calls": in_two_calls(Flash3(), flash_varlen(flash3)),
    "torch varlen in two calls": in_two_calls(TorchVarlen(), torch_varlen),
    "flash-attn 2 in two calls": in_two_calls(Flash2(), flash_varlen(flash2)),
    "torch varlen": torch_varlen,
    "flash-attn varlen": flash_varlen(flash2),
    "flex": compiled_flex,
}
"""Attention by the name of its kernel, best first."""
