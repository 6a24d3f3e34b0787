"""From a row to the log-probabilities of its completions: one forward pass of any wrapped or unwrapped model."""

from typing import Any, NamedTuple

from torch import Tensor

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


def row_log_probs(
    model: Any,
    row: Row,
    width: int,
    *,
    kernel: Kernel = SEGMENT_SDPA,
    entropy: bool = False,
    weight_B: Tensor | None = None,
) -> Scored:
    """Log-probabilities of a row's completions, with gradient, and their entropies if asked for.

    The row goes through ``model(...)``, so PEFT, DDP and FSDP wrappers see an ordinary forward pass.

    Args:
        model: a causal language model after ``use_rows``, with ``add_scored_head`` or TRL's ``add_fused_lm_head``.
        row: from ``build_row``.
        width: W, tokens of the longest completion, or more.
        kernel: what computes attention.
        entropy: whether entropies are wanted. TRL's head computes them whenever it was told to when it was added.
        weight_B: (B,) weights of the completions, for the router loss of a mixture of experts; it needs
            ``add_scored_head``. None: no such loss is wanted.
    """
    weights = {} if weight_B is None else {"token_weight": row.weight_of_positions(weight_B)}
    output = model(
        **row.inputs(), **weights, fused_lm_head=True, score_entropy=entropy, row_segments=row.segments,
        row_kernel=kernel,
    )  # fmt: skip
    return Scored(
        row.unpack(output.log_probs, width),
        row.unpack(output.entropy, width) if entropy else None,
        output.router_loss if weights else None,
    )
