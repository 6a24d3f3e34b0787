"""Variable-length kernels with both passes open, for attention in two calls: torch's, flash-attn 2 and flash-attn 3.

Each needs CUDA and half precision. Their passes are private functions, so any version may lack them or change them.
``kernels.probe`` compares each with plain SDPA before it is used, and a failure of any kind passes it over.
"""

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dppo.packing.two_calls import Pieces


class TorchVarlen:
    """The flash kernel behind ``torch.nn.attention.varlen``, of torch 2.11 or newer."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        run: Any = torch.ops.aten._flash_attention_forward
        output, lse, *_ = run(query, key, value, *pieces, 0.0, causal, False, scale=scale)
        return output, lse

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        run: Any = torch.ops.aten._flash_attention_backward
        seed = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of dropout, which is off
        unused = torch.empty(0, device=query.device)
        return run(grad, query, key, value, output, lse, *pieces, 0.0, causal, seed, unused, scale=scale)


class Flash2:
    """flash-attn 2.7 or newer, as installed or from the ``kernels`` package."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        output, lse, *_ = flash2()._flash_attn_varlen_forward(
            query, key, value, *pieces, dropout_p=0.0, softmax_scale=scale, causal=causal
        )
        return output, lse

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        flash2()._flash_attn_varlen_backward(
            grad, query, key, value, output, lse, *found, *pieces, dropout_p=0.0, softmax_scale=scale, causal=causal,
            window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False,
        )  # fmt: skip
        return found


class Flash3:
    """flash-attn 3, as installed or from the ``kernels`` package, on GPUs of compute capability 9.0."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        output, lse, *_ = flash3()._flash_attn_forward(
            query, key, value, cu_seqlens_q=pieces.query_ends, cu_seqlens_k=pieces.key_ends,
            max_seqlen_q=pieces.most_queries, max_seqlen_k=pieces.most_keys, softmax_scale=scale, causal=causal,
        )  # fmt: skip
        return output, lse

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        flash3()._flash_attn_backward(
            grad, query, key, value, output, lse, cu_seqlens_q=pieces.query_ends, cu_seqlens_k=pieces.key_ends,
            max_seqlen_q=pieces.most_queries, max_seqlen_k=pieces.most_keys, dq=found[0], dk=found[1], dv=found[2],
            softmax_scale=scale, is_causal=causal,
        )  # fmt: skip
        return found


@cache
def flash2() -> Any:
    """flash-attn 2's module of functions: as installed, or from the ``kernels`` package."""
    try:
        return import_module("flash_attn.flash_attn_interface")
    except ImportError:
        return import_module("kernels").get_kernel("kernels-community/flash-attn2").flash_attn_interface


@cache
def flash3() -> Any:
    """flash-attn 3's module of functions: as installed, or from the ``kernels`` package.

    The GPU is looked at first: elsewhere a kernel would be downloaded that cannot run.
    """
    if torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError("it needs a GPU of compute capability 9.0")
    try:
        return import_module("flash_attn_interface")
    except ImportError:
        return import_module("kernels").get_kernel("kernels-community/flash-attn3", version=1).flash_attn_interface
