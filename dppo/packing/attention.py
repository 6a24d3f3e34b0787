"""Rows in transformers: one registered attention function, and which models it serves."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dppo.errors import ConfigError
from dppo.packing.kernels import Kernel
from dppo.packing.rows import Segments

ROWS = "dppo_rows"
"""Name of the attention implementation."""
BATCH_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings that look at the longest sequence of the batch, which a layout changes."""
SERVED_LAYERS = {"full_attention", "sliding_attention"}
RELIED_ON = {
    "PreTrainedConfig": ("_attn_implementation",),
    "PreTrainedModel": ("_is_stateful", "_supports_sdpa", "_supports_attention_backend"),
}
"""Private names of transformers that rows need, by class. Read them with ``private``, here and nowhere else."""


def rows_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    row_segments: Segments | None = None,
    row_kernel: Kernel | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over a row's segments; without segments it is transformers' ``sdpa``, argument for argument.

    Segments arrive as keyword arguments of the model's forward, so generation, evaluation and a recomputation under
    gradient checkpointing each do what their own call said.
    ``attention_mask`` is not used with segments. Gives (1, T, H, D), and None for the attention weights.
    """
    if row_segments is None or row_kernel is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **kwargs
        )
    return _attend(row_kernel, query, key, value, row_segments, scaling, sliding_window), None


@torch.compiler.disable()
def _attend(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """(1, T, H, D) attention by ``kernel``, never part of a compiled graph.

    Every row has other segments, so a graph with them would be compiled again for each row.
    """
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    query, key, value = (x.to(dtype) for x in (query, key, value))  # norms in float32 leave queries and keys there
    return kernel.attend(query, key, value, segments, scale, window).transpose(1, 2).contiguous()


AttentionInterface.register(ROWS, rows_attention)
AttentionMaskInterface.register(ROWS, sdpa_mask)


def private(owner: Any, name: str) -> Any:
    """What a model or its configuration has under one of the names in ``RELIED_ON``.

    Raises:
        ConfigError: this version of transformers does not have it.
    """
    if not hasattr(owner, name):
        raise ConfigError(
            f"transformers {transformers.__version__} has no {name} on {type(owner).__name__}, which packed rows rely "
            "on. Use layout: padded, or the version that constraints.txt names."
        )
    return getattr(owner, name)


def use_rows(model: PreTrainedModel) -> None:
    """Let ``model`` attend over rows where it is given segments; everything else stays ordinary sdpa."""
    patched: Any = model
    before = private(model.config, "_attn_implementation")
    if before != ROWS:
        patched.attention_before_rows = before
    model.set_attn_implementation(ROWS)


def leave_rows(model: PreTrainedModel) -> bool:
    """Give ``model`` back the attention implementation it had before ``use_rows``; False, and nothing, without that."""
    attends = private(model.config, "_attn_implementation") == ROWS
    if attends:
        model.set_attn_implementation(str(getattr(model, "attention_before_rows", "sdpa")))
    return attends


DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
"""Names under which configurations drop attention weights."""


def unwrapped(model: Any) -> PreTrainedModel:
    """The model without its adapters' wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def sliding_layers(model: Any) -> int:
    """How many layers of ``model`` have a sliding window, by its configuration.

    Each must hand the window to its attention function. Some models put it into the mask alone, which rows replace.
    """
    config = model.config.get_text_config()
    if getattr(config, "sliding_window", None) is None or not getattr(config, "use_sliding_window", True):
        return 0
    types = getattr(config, "layer_types", None)
    return config.num_hidden_layers if types is None else list(types).count("sliding_attention")


def unsupported(model: PreTrainedModel) -> str:
    """Why rows cannot serve ``model``, or "" where they can."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "layers_block_type", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {r.get("rope_type", "default") for r in ([rope] if "rope_type" in rope else rope.values()) if r}
    reasons: list[tuple[Any, str]] = [
        (config is not model.config, "it is a vision-language model"),
        (getattr(config, "is_encoder_decoder", False), "it has an encoder"),
        (private(model, "_is_stateful"), "it has recurrent layers, which scan across the segments of a row"),
        (layers - SERVED_LAYERS, f"it has layers of type {', '.join(sorted(layers - SERVED_LAYERS))}"),
        (getattr(config, "attn_logit_softcapping", None), "it caps attention scores, which sdpa cannot"),
        (any(n.endswith(".sinks") for n, _ in model.named_parameters()), "it has attention sinks, which sdpa lacks"),
        (getattr(config, "use_bidirectional_attention", None), "its attention is not causal"),
        (
            any(getattr(config, name, 0.0) for name in DROPOUTS),
            "it drops attention weights at random; set its attention dropout to 0",
        ),
        (getattr(config, "keep_window_size", None), "it drops keys beyond a window by what it attends to"),
        (kinds & BATCH_ROPE, f"its rotary embedding ({', '.join(sorted(kinds & BATCH_ROPE))}) depends on the batch"),
        (
            not (private(model, "_supports_sdpa") and private(model, "_supports_attention_backend")),
            f"transformers cannot change the attention of {type(model).__name__}",
        ),
    ]
    return next((reason for present, reason in reasons if present), "")
