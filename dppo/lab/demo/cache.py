"""Keys and values of a batch in one buffer, and Qwen3's forward pass with fused projections."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer, with projections of the same input fused."""

    input_norm: Tensor
    query_key_value: Tensor
    query_key_norm: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


LAYER_WEIGHTS = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")),
)
"""The modules of a layer that ``_fused`` covers, each with a single ``weight``."""


def _fused(layer: Any, heads: int, kv_heads: int) -> _Layer:
    """The weights of a layer, copied where they are fused."""
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        query_key_value=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        query_key_norm=torch.stack([attention.q_norm.weight] * heads + [attention.k_norm.weight] * kv_heads),
        output=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )


class Cache:
    """Keys and values of a shrinking batch of texts, padded on the left so that all write the same column."""

    def __init__(self, model: Qwen3ForCausalLM, pad_B: Tensor, columns: int) -> None:
        config, device, heads = model.config, model.device, model.config.num_attention_heads
        self.kv_heads, self.head_dim = config.num_key_value_heads or heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.groups = heads // self.kv_heads
        self.model, self.pad_B = model, pad_B
        self.layers = [_fused(layer, heads, self.kv_heads) for layer in model.model.layers]
        self.dtype = model.model.embed_tokens.weight.dtype
        # The most negative number rather than -inf: a padded query sees nothing, and its softmax must not be nan.
        self.unseen = torch.finfo(self.dtype).min
        column = torch.arange(columns, device=device)
        self.bias_BT = torch.zeros(len(pad_B), columns, dtype=self.dtype, device=device)
        self.bias_BT.masked_fill_(column < pad_B[:, None], self.unseen)
        cos, sin = model.model.rotary_emb(self.bias_BT, column[None])
        self.cos, self.sin = cos[0], sin[0]
        shape = (len(self.layers), 2, len(pad_B), self.kv_heads, columns, self.head_dim)
        self.store = torch.empty(shape, dtype=self.dtype, device=device)
        self.filled = 0

    def read_prompts(self, token_PT: Tensor, size_P: Tensor) -> Tensor:
        """Logits after the prompt of each completion; every prompt is read once for its ``size_P`` completions."""
        prompts, longest = token_PT.shape
        first_P = size_P.cumsum(0) - size_P
        pad_P, bias_PT = self.pad_B[first_P], self.bias_BT[first_P, :longest]
        column = torch.arange(longest, device=pad_P.device)
        position_PT = (column - pad_P[:, None]).clamp_min(0)
        future = torch.full((longest, longest), self.unseen, device=column.device).triu(1)
        store, self.store = self.store, self.store[:, :, :prompts]
        hidden_PTD = self.forward(token_PT, position_PT, torch.minimum(bias_PT[:, None], future.to(self.dtype)))
        first = self.store[..., :longest, :].repeat_interleave(size_P, 2)
        self.store = store
        self.store[..., :longest, :] = first
        self.filled = longest
        return self.model.lm_head(hidden_PTD[:, -1]).repeat_interleave(size_P, 0)

    def read_tokens(self, token_B: Tensor) -> Tensor:
        """Logits after one more token of every completion in the batch."""
        position_B1 = (self.filled - self.pad_B)[:, None]
        hidden_B1D = self.forward(token_B[:, None], position_B1, self.bias_BT[:, None, : self.filled + 1])
        self.filled += 1
        return self.model.lm_head(hidden_B1D[:, 0])

    def drop_all_but(self, going_B: Tensor) -> None:
        """Shrink the batch to the given completions, in place."""
        count = len(going_B)
        self.store[:, :, :count, :, : self.filled] = self.store[:, :, going_B, :, : self.filled]
        self.store = self.store[:, :, :count]
        self.pad_B, self.bias_BT = self.pad_B[going_B], self.bias_BT[going_B]

    def forward(self, token_BT: Tensor, position_BT: Tensor, bias: Tensor) -> Tensor:
        """(B, T, D) hidden states after the last norm; ``bias`` is added to the (B, T, columns) attention scores.

        Keys and values are written from column ``filled`` on.
        """
        (rows, new), backbone = token_BT.shape, self.model.model
        stop, heads = self.filled + new, self.groups * self.kv_heads
        cos, sin = self.cos[position_BT][:, :, None], self.sin[position_BT][:, :, None]
        # Query heads that share a key head become more queries of it, so keys and values are not copied.
        bias = bias.repeat(1, self.groups, 1)[:, None] if new > 1 else bias[:, None]
        hidden = backbone.embed_tokens(token_BT)
        for layer, (keys, values) in zip(self.layers, self.store, strict=True):
            joint = F.linear(self._norm(hidden, layer.input_norm), layer.query_key_value)
            joint = joint.view(rows, new, heads + 2 * self.kv_heads, self.head_dim)
            query_key = F.rms_norm(joint[:, :, : -self.kv_heads], (self.head_dim,), None, self.eps)
            query_key = query_key * layer.query_key_norm
            first, second = query_key.chunk(2, -1)
            query_key = query_key * cos + torch.cat((-second, first), -1) * sin  # rotary embedding
            keys[:, :, self.filled : stop] = query_key[:, :, heads:].transpose(1, 2)
            values[:, :, self.filled : stop] = joint[:, :, -self.kv_heads :].transpose(1, 2)
            query = query_key[:, :, :heads].view(rows, new, self.kv_heads, self.groups, self.head_dim)
            query = query.permute(0, 2, 3, 1, 4).reshape(rows, self.kv_heads, self.groups * new, self.head_dim)
            mixed = F.scaled_dot_product_attention(query, keys[:, :, :stop], values[:, :, :stop], attn_mask=bias)
            mixed = mixed.view(rows, self.kv_heads, self.groups, new, self.head_dim).permute(0, 3, 1, 2, 4)
            hidden = hidden + F.linear(mixed.reshape(rows, new, heads * self.head_dim), layer.output)
            gate, up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(hidden, backbone.norm.weight)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square norm over the last dimension."""
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self.eps)
