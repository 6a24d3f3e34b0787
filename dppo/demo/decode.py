"""A small batched decoder for Qwen3: several completions per prompt, with the log-probability of every token.

It gives what ``generate`` of transformers gives, faster for a tiny model: a prompt is read once for all its
completions, keys and values are written into one preallocated buffer, projections that read the same input are fused,
and finished rows are dropped from the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM

from dppo.errors import raise_problems

DROP_SHARE = 0.1
"""Finished rows are dropped once they are this share of the batch: copying the buffer costs less than a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Sampled completions, right-padded, those of the first prompt first."""

    token_NT: Tensor
    """(N, T) int64 token ids, the end-of-sequence token included, padded with the model's padding id."""
    length_N: Tensor
    """(N,) int64 tokens of each completion, 1 <= length <= T."""
    logp_NT: Tensor
    """(N, T) float32 log-probability, in nats, of each token at the sampling temperature; 0 where padded."""

    @property
    def mask_NT(self) -> Tensor:
        """(N, T) bool, True at the tokens of a completion."""
        return torch.arange(self.token_NT.shape[1], device=self.length_N.device) < self.length_N[:, None]

    @property
    def token_lists(self) -> list[list[int]]:
        """The token ids of each completion as plain lists, without padding."""
        return [row[:n] for row, n in zip(self.token_NT.tolist(), self.length_N.tolist(), strict=True)]


@torch.no_grad()
def sample(
    model: Qwen3ForCausalLM,
    prompts: list[list[int]],
    generator: torch.Generator | None,
    *,
    samples: int | Sequence[int] = 1,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> Rollout:
    """``samples`` completions of every prompt, each up to its end-of-sequence token or ``max_new_tokens``.

    Args:
        model: a Qwen3 policy; its mode and gradients are left as they are.
        prompts: token ids of each prompt, of any lengths >= 1.
        generator: where the randomness comes from, on the model's device; None only with ``temperature=0``.
        samples: completions per prompt, >= 1, or those of each of them.
        max_new_tokens: longest completion, in tokens, >= 1.
        temperature: divides the logits, >= 0. At 0 the most likely token is taken, and its log-probability is reported
            at temperature 1.

    Raises:
        ConfigError: if an argument is out of range, or the model is not one this decoder computes exactly.

    Source: Gumbel (1954): ``argmax(logp - log(E))`` with ``E`` exponential is a draw from ``exp(logp)``.
    """
    samples = [samples] * len(prompts) if isinstance(samples, int) else list(samples)
    _check(model, prompts, generator, samples, max_new_tokens, temperature)
    cache = _Cache(model, prompts, samples, max_new_tokens)
    rows, device = sum(samples), model.device
    end = torch.tensor(_end_tokens(model), device=device)
    token_NT = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
    logp_NT = torch.zeros(rows, max_new_tokens, device=device)
    length_N = torch.full((rows,), max_new_tokens, device=device)
    row_B = torch.arange(rows, device=device)  # which completion each row of the shrinking batch is
    logits_BV = cache.read_prompts()
    for step in range(max_new_tokens):
        next_B, chosen_B = _choose(logits_BV, generator, temperature)
        token_NT[row_B, step], logp_NT[row_B, step] = next_B, chosen_B
        open_B = length_N[row_B] == max_new_tokens  # an ended row may linger until it is dropped
        ended_B = torch.isin(next_B, end) & open_B
        length_N[row_B[ended_B]] = step + 1
        going_B = (open_B & ~ended_B).nonzero()[:, 0]
        if len(going_B) == 0 or step + 1 == max_new_tokens:
            break
        if len(going_B) <= (1 - DROP_SHARE) * len(row_B):
            cache.drop_all_but(going_B)
            row_B, next_B = row_B[going_B], next_B[going_B]
        logits_BV = cache.read_tokens(next_B)
    width = int(length_N.max())
    padded_NT = torch.arange(width, device=device) >= length_N[:, None]
    token_NT = token_NT[:, :width].masked_fill(padded_NT, model.config.pad_token_id or 0)
    return Rollout(token_NT=token_NT, length_N=length_N, logp_NT=logp_NT[:, :width].masked_fill(padded_NT, 0.0))


def _choose(logits_BV: Tensor, generator: torch.Generator | None, temperature: float) -> tuple[Tensor, Tensor]:
    """A token per row and its log-probability."""
    logp_BV = (logits_BV.float() / (temperature or 1.0)).log_softmax(1)
    score_BV = logp_BV
    if temperature > 0:
        score_BV = logp_BV - torch.empty_like(logp_BV).exponential_(generator=generator).log_()
    next_B = score_BV.argmax(1)
    return next_B, logp_BV.gather(1, next_B[:, None])[:, 0]


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
"""What a layer must consist of, each a single ``weight``, for ``_fused`` to take all of it."""


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


class _Cache:
    """Keys and values of a batch that shrinks. Prompts are padded on the left, so all rows write the same column."""

    def __init__(
        self, model: Qwen3ForCausalLM, prompts: list[list[int]], samples: list[int], max_new_tokens: int
    ) -> None:
        config, device, heads = model.config, model.device, model.config.num_attention_heads
        self.kv_heads, self.head_dim = config.num_key_value_heads or heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.groups = heads // self.kv_heads
        self.model, self.samples = model, torch.tensor(samples, device=device)
        self.layers = [_fused(layer, heads, self.kv_heads) for layer in model.model.layers]
        longest = max(map(len, prompts))
        columns = longest + max_new_tokens
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        self.token_PT = torch.tensor(padded, device=device)
        self.pad_B = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
        self.dtype = model.model.embed_tokens.weight.dtype
        column = torch.arange(columns, device=device)
        # The most negative number rather than -inf: a padded query sees nothing, and its softmax must not be nan.
        padded = column < self.pad_B[:, None]
        self.bias_BT = torch.zeros(len(prompts), columns, dtype=self.dtype, device=device)
        self.bias_BT.masked_fill_(padded, torch.finfo(self.dtype).min)
        cos, sin = model.model.rotary_emb(self.bias_BT, column[None])
        self.cos, self.sin = cos[0], sin[0]
        shape = (len(self.layers), 2, sum(samples), self.kv_heads, columns, self.head_dim)
        self.store = torch.empty(shape, dtype=self.dtype, device=device)
        self.filled = 0

    def read_prompts(self) -> Tensor:
        """Logits after each prompt, one row per completion; every prompt is read once."""
        prompts, longest = self.token_PT.shape
        column = torch.arange(longest, device=self.pad_B.device)
        position_PT = (column - self.pad_B[:, None]).clamp_min(0)
        future = torch.full((longest, longest), torch.finfo(self.dtype).min, device=column.device).triu(1)
        bias = torch.minimum(self.bias_BT[:, None, :longest], future.to(self.dtype))
        store, self.store = self.store, self.store[:, :, :prompts]
        hidden_PTD = self._forward(self.token_PT, position_PT, bias)
        first = self.store[..., :longest, :].repeat_interleave(self.samples, 2)
        self.store = store
        self.store[..., :longest, :] = first
        self.pad_B, self.bias_BT = (x.repeat_interleave(self.samples, 0) for x in (self.pad_B, self.bias_BT))
        self.filled = longest
        return self.model.lm_head(hidden_PTD[:, -1]).repeat_interleave(self.samples, 0)

    def read_tokens(self, token_B: Tensor) -> Tensor:
        """Logits after one more token of every row still in the batch."""
        position_B1 = (self.filled - self.pad_B)[:, None]
        hidden_B1D = self._forward(token_B[:, None], position_B1, self.bias_BT[:, None, : self.filled + 1])
        self.filled += 1
        return self.model.lm_head(hidden_B1D[:, 0])

    def drop_all_but(self, going_B: Tensor) -> None:
        """Shrink the batch to the given rows, in place."""
        count = len(going_B)
        self.store[:, :, :count, :, : self.filled] = self.store[:, :, going_B, :, : self.filled]
        self.store = self.store[:, :, :count]
        self.pad_B, self.bias_BT = self.pad_B[going_B], self.bias_BT[going_B]

    def _forward(self, token_BT: Tensor, position_BT: Tensor, bias: Tensor) -> Tensor:
        """(B, T, D) hidden states after the last norm; ``bias`` is what is added to (B, T, columns) attention scores.

        Keys and values are written from column ``filled`` on.
        """
        (rows, new), backbone = token_BT.shape, self.model.model
        stop, heads = self.filled + new, self.groups * self.kv_heads
        cos, sin = self.cos[position_BT][:, :, None], self.sin[position_BT][:, :, None]
        # Query heads that share a key head become more queries of that head: nothing is repeated.
        bias = bias.repeat(1, self.groups, 1)[:, None] if new > 1 else bias[:, None]
        hidden = backbone.embed_tokens(token_BT)
        for layer, (keys, values) in zip(self.layers, self.store, strict=True):
            joint = F.linear(self._norm(hidden, layer.input_norm), layer.query_key_value)
            joint = joint.view(rows, new, heads + 2 * self.kv_heads, self.head_dim)
            query_key = (
                F.rms_norm(joint[:, :, : -self.kv_heads], (self.head_dim,), None, self.eps) * layer.query_key_norm
            )
            query_key = query_key * cos + _rotate_half(query_key) * sin
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


def _rotate_half(x: Tensor) -> Tensor:
    """The quarter turn of rotary embeddings: the second half negated, then the first."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _end_tokens(model: Qwen3ForCausalLM) -> list[int]:
    """Token ids that end a completion."""
    end = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
    return [end] if isinstance(end, int) else list(end or ())


def _check(
    model: Qwen3ForCausalLM,
    prompts: list[list[int]],
    generator: torch.Generator | None,
    samples: list[int],
    max_new_tokens: int,
    temperature: float,
) -> None:
    """Raise one error that names everything ``sample`` cannot do."""
    config, problems = model.config, []
    if not prompts or min(map(len, prompts)) == 0:
        problems.append("prompts must hold at least one prompt, each of at least one token, for example [[1, 9, 2]].")
    if len(samples) != len(prompts):
        problems.append(f"samples are {len(samples)} numbers for {len(prompts)} prompts: expected one of each.")
    for name, value in (("samples", min(samples, default=1)), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            problems.append(f"{name}={value} must be >= 1, for example {name}=8.")
    if temperature < 0 or (temperature > 0 and generator is None):
        problems.append(
            f"temperature={temperature:g} must be >= 0, with a generator if above 0: pass "
            "torch.Generator().manual_seed(0), or temperature=0 for the most likely token."
        )
    if config.pad_token_id is None:
        problems.append("config.pad_token_id=None must be a token id, for example model.config.pad_token_id = 0.")
    expected = {f"{index}.{name}.weight" for index in range(config.num_hidden_layers) for name in LAYER_WEIGHTS}
    plain = {name for name, _ in model.model.layers.named_parameters()} == expected
    full = set(config.layer_types or ["full_attention"]) == {"full_attention"}
    if config.hidden_act != "silu" or not (plain and full):
        problems.append(
            f"model={type(model).__name__} must be a Qwen3ForCausalLM with full attention, silu, and linear layers "
            "without bias or adapters. For others use model.generate."
        )
    raise_problems("decode.sample", problems)
