"""Rows in transformers: a registered attention function, and the reasons why it cannot serve a model.

A row has no mask tensor: its ``Segments`` state to which tokens each of its sequences attends.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dppo.errors import ConfigError
from dppo.packing.kernels import Kernel

ROWS = "dppo_rows"
"""Name of the attention implementation."""
BATCH_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings that depend on the longest sequence of the batch, which a layout changes."""
SERVED_LAYERS = {"full_attention", "sliding_attention"}
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
"""Names of configurations for the rate at which attention weights are dropped."""
RELIED_ON = {
    "PreTrainedConfig": ("_attn_implementation",),
    "PreTrainedModel": ("_is_stateful", "_supports_sdpa", "_supports_attention_backend"),
}
"""Private names of transformers that rows need, by class. Only this file reads them, with ``private``."""


def rows_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention (1, T, H, D) over a row's segments, and None for its weights; without segments transformers' ``sdpa``.

    ``row_segments`` and ``row_kernel`` are keyword arguments of the model's forward, so every call, a recomputation
    under gradient checkpointing included, has its own. ``attention_mask`` is not used with segments.
    """
    segments, kernel = options.pop("row_segments", None), options.pop("row_kernel", None)
    if segments is None or kernel is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return _attend(kernel, query, key, value, segments, options.get("scaling"), options.get("sliding_window")), None


@torch.compiler.disable()
def _attend(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, *of_row: Any) -> Tensor:
    """(1, T, H, D) attention by ``kernel``. A graph with a row's segments would be compiled again for each row."""
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    query, key, value = (x.to(dtype) for x in (query, key, value))  # norms in float32 leave queries and keys there
    return kernel.attend(query, key, value, *of_row).transpose(1, 2).contiguous()


AttentionInterface.register(ROWS, rows_attention)
AttentionMaskInterface.register(ROWS, sdpa_mask)


def private(owner: Any, name: str) -> Any:
    """An attribute named in ``RELIED_ON``; ConfigError if this version of transformers does not have it."""
    if not hasattr(owner, name):
        raise ConfigError(
            f"transformers {transformers.__version__} has no {name} on {type(owner).__name__}, which packed rows rely "
            "on. Use layout: padded, or the version that constraints.txt names."
        )
    return getattr(owner, name)


def use_rows(model: PreTrainedModel) -> None:
    """Let ``model`` attend over rows if its forward gets segments; other calls use sdpa."""
    patched: Any = model
    before = private(model.config, "_attn_implementation")
    if before != ROWS:
        patched.attention_before_rows = before
    model.set_attn_implementation(ROWS)


def leave_rows(model: PreTrainedModel) -> bool:
    """Restore the attention implementation of ``model`` before ``use_rows``; False if rows were not in use."""
    attends = private(model.config, "_attn_implementation") == ROWS
    if attends:
        model.set_attn_implementation(str(getattr(model, "attention_before_rows", "sdpa")))
    return attends


def unwrapped(model: Any) -> PreTrainedModel:
    """The model without the wrapper of its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def sliding_layers(model: Any) -> int:
    """Number of layers with a sliding window, by the configuration of ``model``.

    Each must pass the window to its attention function. Some models put it into the mask alone, which rows replace.
    """
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) is None or not getattr(config, "use_sliding_window", True):
        return 0
    types = getattr(config, "layer_types", None)
    return config.num_hidden_layers if types is None else list(types).count("sliding_attention")


def unsupported(model: PreTrainedModel) -> str:
    """The reason why rows cannot serve ``model``, or "" if they can."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "layers_block_type", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {r.get("rope_type", "default") for r in ([rope] if "rope_type" in rope else rope.values()) if r}
    random = any(getattr(config, name, 0.0) for name in DROPOUTS)
    replaceable = private(model, "_supports_sdpa") and private(model, "_supports_attention_backend")
    reasons: list[tuple[Any, str]] = [
        (config is not model.config, "it is a vision-language model"),
        (getattr(config, "is_encoder_decoder", False), "it has an encoder"),
        (private(model, "_is_stateful"), "it has recurrent layers, which scan across the segments of a row"),
        (layers - SERVED_LAYERS, f"it has layers of type {', '.join(sorted(layers - SERVED_LAYERS))}"),
        (getattr(config, "attn_logit_softcapping", None), "it caps attention scores, which sdpa cannot"),
        (any(n.endswith(".sinks") for n, _ in model.named_parameters()), "it has attention sinks, which sdpa lacks"),
        (getattr(config, "use_bidirectional_attention", None), "its attention is not causal"),
        (random, "it drops attention weights at random; set its attention dropout to 0"),
        (getattr(config, "keep_window_size", None), "it drops keys beyond a window by their attention weights"),
        (kinds & BATCH_ROPE, f"its rotary embedding ({', '.join(sorted(kinds & BATCH_ROPE))}) depends on the batch"),
        (not replaceable, f"transformers cannot change the attention of {type(model).__name__}"),
    ]
    return next((reason for present, reason in reasons if present), "")
