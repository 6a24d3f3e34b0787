"""Log-probabilities of a row's completions: one forward pass of a model, wrapped or not."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dppo.packing.head import TOKEN_METRICS
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Row


class Scored(NamedTuple):
    """Results of a forward pass over B completions, as of ``ScoredOutput``; 0 where no token is scored."""

    logp_BT: Tensor
    entropy_BT: Tensor | None = None
    router_loss: Tensor | None = None
    metrics: Mapping[str, Tensor] | None = None
    """(B, T) of each of ``TOKEN_METRICS`` that the head computes."""


def row_log_probs(
    model: Any,
    row: Row,
    width: int,
    *,
    kernel: Kernel = SEGMENT_SDPA,
    entropy: bool = False,
    weight_B: Tensor | None = None,
    metrics: bool = False,
) -> Scored:
    """Log-probabilities of a row's completions, with gradient, and their entropies and ``TOKEN_METRICS`` if requested.

    The model has ``use_rows`` and ``add_scored_head``, or TRL's ``add_fused_lm_head``, and may be wrapped by PEFT, DDP
    or FSDP. ``width`` is at least the tokens of the longest completion. ``weight_B`` weights the completions in a
    mixture's router loss, which needs ``add_scored_head``; None without one.
    """
    requested: dict[str, Any] = {"score_metrics": True} if metrics else {}
    if weight_B is not None:
        requested["token_weight"] = row.weight_of_positions(weight_B)
    output = model(**row_inputs(row, kernel=kernel, entropy=entropy), **requested)
    return Scored(
        row.unpack(output.log_probs, width),
        row.unpack(output.entropy, width) if entropy else None,
        None if weight_B is None else output.router_loss,
        metrics_of(output, lambda value: row.unpack(value, width)) if metrics else None,
    )


def row_inputs(row: Row, *, kernel: Kernel, entropy: bool = False) -> dict[str, Any]:
    """Keyword arguments of the forward of a model with ``use_rows`` and a scored head.

    The 4-D mask is a dummy, because without one transformers builds its own, T x T and wrong. It is NaN, so an
    attention that adds it instead of using segments gives no plausible numbers.
    """
    return {
        "input_ids": row.input_ids,
        "position_ids": row.position_ids,
        "attention_mask": torch.full((1, 1, 1, 1), torch.nan, device=row.input_ids.device),
        "row_segments": row.segments,
        "row_kernel": kernel,
        "shift_labels": row.labels,
        "fused_lm_head": True,
        "score_entropy": entropy,
    }


def metrics_of(output: Any, place: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The ``TOKEN_METRICS`` in a head's output, each changed by ``place``."""
    found = {name: getattr(output, name, None) for name in TOKEN_METRICS}
    return {name: place(value.detach()) for name, value in found.items() if value is not None}
