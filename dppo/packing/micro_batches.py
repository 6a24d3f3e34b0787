"""Length-sorted micro-batches: the fallback layout, and the only one until rows of segments arrive."""

import torch
from torch import Tensor


def sorted_micro_batches(length_N: Tensor, max_tokens: int) -> list[Tensor]:
    """Indices of micro-batches, longest rows first, so that each is padded only to its own longest row.

    Sorting puts rows of like length together, which is what makes trimming the padding worthwhile. A row longer
    than ``max_tokens`` gets a micro-batch of its own: nothing is dropped or cut.

    Args:
        length_N: (N,) integer, tokens of each row, >= 0.
        max_tokens: padded tokens of one micro-batch, rows times the longest of them, >= 1.

    Returns:
        Index tensors that together hold every row once; empty for no rows. Ties keep the order given.

    Example:
        Lengths ``[3, 8, 4]`` with ``max_tokens=8`` give ``[tensor([1]), tensor([2, 0])]``.
    """
    order = torch.argsort(length_N, descending=True, stable=True)
    lengths = length_N[order].tolist()
    batches, start = [], 0
    while start < len(lengths):
        stop = start + max(1, max_tokens // max(1, lengths[start]))
        batches.append(order[start:stop])
        start = stop
    return batches


def padded_tokens(length_N: Tensor, batches: list[Tensor]) -> int:
    """Tokens a forward over ``batches`` computes, padding included: the sum of rows times the longest row."""
    return sum(int(len(batch) * length_N[batch].max()) for batch in batches)
