"""Attention over TRL's prefix tries where its kernel, flash-attn 3, is missing: one SDPA call per segment."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface
from trl.experimental.async_grpo.packing import TREE_ATTENTION, tree_attention

from dppo.errors import ConfigError


def attend_by_segment(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention (1, T, H, D) of a packed row with the indices of TRL's ``TreeRow``, and None for its weights.

    Each segment attends to the keys of its path from the root, causally at the bottom right: the last query sees all.
    """
    if softcap:  # which SDPA cannot
        capped = f"{type(module).__name__} caps attention scores at {softcap:g}"
        raise ConfigError(f"{capped}, which needs flash-attn 3 on a GPU. Train a model without it here.")
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.index_select(2, tree_kv_index).repeat_interleave(repeat, 1) for x in (key, value))
    length_S, seen_S = (bounds.diff().tolist() for bounds in (tree_cu_seqlens_q, tree_cu_seqlens_k))
    parts = []
    for q, k, v in zip(query.split(length_S, 2), key.split(seen_S, 2), value.split(seen_S, 2), strict=True):
        length, seen = q.shape[2], k.shape[2]
        visible = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril(seen - length)
        if sliding_window:
            visible = visible.triu(seen - length + 1 - sliding_window)
        parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def serve_tree_attention(device: torch.device) -> str:
    """Register a kernel for TRL's tries that ``device`` can run, for the whole process; return its name."""
    flash = device.type == "cuda" and find_spec("kernels") is not None
    AttentionInterface.register(TREE_ATTENTION, tree_attention if flash else attend_by_segment)
    return "flash-attn 3" if flash else "sdpa per segment"
