"""From a row to the log-probabilities of its completions: one forward pass of any wrapped or unwrapped model."""

from typing import Any

from torch import Tensor

from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Row


def row_log_probs(
    model: Any, row: Row, width: int, *, kernel: Kernel = SEGMENT_SDPA, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of a row's completions, with gradient, and their entropies if asked for.

    The row goes through ``model(...)``, so PEFT, DDP and FSDP wrappers see an ordinary forward pass.

    Args:
        model: a causal language model after ``use_rows``, with ``add_scored_head`` or TRL's ``add_fused_lm_head``.
        row: from ``build_row``.
        width: W, tokens of the longest completion, or more.
        kernel: what computes attention.
        entropy: whether entropies are wanted. TRL's head computes them whenever it was told to when it was added.

    Returns:
        (K, W) log-probabilities in nats, 0 where nothing is scored; (K, W) entropies in nats, or None.
    """
    output = model(
        **row.inputs(), fused_lm_head=True, score_entropy=entropy, row_segments=row.segments, row_kernel=kernel
    )
    entropy_1T = output.entropy if entropy else None
    return row.unpack(output.log_probs, width), None if entropy_1T is None else row.unpack(entropy_1T, width)
