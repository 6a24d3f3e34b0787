"""Log-probabilities of a row's completions: one forward pass of a model, wrapped or not."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dppo.packing.head import TOKEN_METRICS
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Row


class Scored(NamedTuple):
    """Results of a forward pass over B completions; None if not requested."""

    logp_BT: Tensor
    """(B, T) log-probabilities in nats, 0 where no token is scored."""
    entropy_BT: Tensor | None = None
    """(B, T) entropies in nats."""
    router_loss: Tensor | None = None
    """() load-balancing loss over weighted tokens, times the sum of the weights."""
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
    or FSDP. ``width`` is at least the tokens of the longest completion. ``weight_B`` are weights of the completions for
    the router loss of a mixture of experts, which needs ``add_scored_head``; None without such a loss.
    """
    weights = {} if weight_B is None else {"token_weight": row.weight_of_positions(weight_B)}
    requested = {"score_metrics": True} if metrics else {}
    output = model(**row_inputs(row, kernel=kernel, entropy=entropy), **weights, **requested)
    return Scored(
        row.unpack(output.log_probs, width),
        row.unpack(output.entropy, width) if entropy else None,
        output.router_loss if weights else None,
        metrics_of(output, lambda value: row.unpack(value, width)) if metrics else None,
    )


def row_inputs(row: Row, *, kernel: Kernel, entropy: bool = False) -> dict[str, Any]:
    """Keyword arguments of the forward of a model with ``use_rows`` and a scored head."""
    of_head = {"fused_lm_head": True, "score_entropy": entropy}
    return {**row.inputs(), **of_head, "row_segments": row.segments, "row_kernel": kernel}


def metrics_of(output: Any, place: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The ``TOKEN_METRICS`` in a head's output, each changed by ``place``."""
    found = {name: getattr(output, name, None) for name in TOKEN_METRICS}
    return {name: place(value.detach()) for name, value in found.items() if value is not None}
