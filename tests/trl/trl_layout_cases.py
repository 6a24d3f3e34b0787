"""Tiny models that rows serve and that they cannot, and the ways in which rows can be wrong."""

import torch
from tiny_runs import HEADS, ON_CPU, SIZE, enlarged, scripted
from transformers import (
    AttentionInterface,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dppo.packing.attention import ROWS, rows_attention

ROTARY = {"rope_type": "default", "rope_theta": 1e4}
POSITIONS = 20
"""Positions of models that have few: enough for each sequence below, too few for a row."""


def of(model, config, **sizes):
    """Makes a tiny model."""
    return lambda: model(config(**SIZE | HEADS | {"head_dim": 8} | sizes))


def gpt2():
    size = dict(vocab_size=31, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4, pad_token_id=0, eos_token_id=1)
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=None, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


WINDOWS = dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
SINKS = dict(num_local_experts=2, num_experts_per_tok=1, rope_parameters=ROTARY)
mixture = of(Qwen3MoeForCausalLM, Qwen3MoeConfig, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
SERVED = {
    "mixture of experts": mixture,
    "sliding window": of(Gemma3ForCausalLM, Gemma3TextConfig, **WINDOWS),
    "few rotary positions": of(Qwen3ForCausalLM, Qwen3Config, max_position_embeddings=POSITIONS),
    "few learned positions": gpt2,
}
UNSERVED = {"it has attention sinks": of(GptOssForCausalLM, GptOssConfig, **SINKS)}


def written(model, tiny_path, folder):
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_path).save_pretrained(folder)
    return str(folder)


def saved(model, tiny_path, folder):
    """With large random weights, on disk beside the tiny tokenizer."""
    torch.manual_seed(0)
    return written(enlarged(model), tiny_path, folder)


def same_length(prompts, trainer):
    """Prompts of four tokens: with learned positions TRL's left padding would move those of shorter prompts."""
    output = scripted(prompts, trainer)
    return output | {"prompt_ids": [(ids * 2)[:4] for ids in output["prompt_ids"]]}


def broken(name, monkeypatch):
    """The row as one sequence, or as if transformers no longer passed on keyword arguments that it does not know."""

    def attend(module, query, key, value, mask, *, row_segments=None, row_kernel=None, **kwargs):
        if name == "arguments dropped":
            return rows_attention(module, query, key, value, mask, **kwargs)
        return sdpa_attention_forward(module, query, key, value, None if row_segments is not None else mask, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, ROWS, attend)


BROKEN = {
    "segments ignored": "e+00 nats (tolerance 1.0e-04), gradients",
    "arguments dropped": "nan nats" if ON_CPU else "must be contiguous",
}
"""Ways in which rows can be wrong, and what the self-check says of each."""
