"""From a row to the log-probabilities of its completions: one forward pass of any wrapped or unwrapped model."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from dppo.packing.head import TOKEN_METRICS
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Row


class Scored(NamedTuple):
    """What a forward pass says of B completions."""

    logp_BT: Tensor
    """(B, T) log-probabilities in nats, 0 where nothing is scored."""
    entropy_BT: Tensor | None = None
    """(B, T) entropies in nats; None where not asked for."""
    router_loss: Tensor | None = None
    """() load-balancing loss over weighted tokens, times the sum of the weights; None without weights."""
    metrics: Mapping[str, Tensor] | None = None
    """(B, T) of each of ``TOKEN_METRICS`` that the head computes; None where not asked for."""


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
    """Log-probabilities of a row's completions, with gradient, and their entropies and ``TOKEN_METRICS`` if asked for.

    The row goes through ``model(...)``, so PEFT, DDP and FSDP wrappers see an ordinary forward pass. The model comes
    after ``use_rows``, with ``add_scored_head`` or TRL's ``add_fused_lm_head``, which computes entropies and metrics
    where it was told to when it was added. ``width`` is at least the tokens of the longest completion. ``weight_B``
    are weights of the completions for the router loss of a mixture of experts, which needs ``add_scored_head``; None
    where no such loss is wanted.
    """
    weights = {} if weight_B is None else {"token_weight": row.weight_of_positions(weight_B)}
    asked = {"score_metrics": True} if metrics else {}
    output = model(
        **row.inputs(), **weights, **asked, fused_lm_head=True, score_entropy=entropy, row_segments=row.segments,
        row_kernel=kernel,
    )  # fmt: skip
    return Scored(
        row.unpack(output.log_probs, width),
        row.unpack(output.entropy, width) if entropy else None,
        output.router_loss if weights else None,
        metrics_of(output, lambda value: row.unpack(value, width)) if metrics else None,
    )


def metrics_of(output: Any, place: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Those of ``TOKEN_METRICS`` that a head's output has, each through ``place``."""
    found = {name: getattr(output, name, None) for name in TOKEN_METRICS}
    return {name: place(value.detach()) for name, value in found.items() if value is not None}
