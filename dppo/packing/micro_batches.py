"""Length-sorted micro-batches: the layout for models that rows of segments cannot serve."""

from itertools import pairwise

import torch
from torch import Tensor


def sorted_micro_batches(width: Tensor, max_tokens: int) -> list[Tensor]:
    """Indices of micro-batches, longest rows first, so that each is padded only to its own longest row.

    A row longer than ``max_tokens`` gets a micro-batch of its own: nothing is dropped or cut. Widths are (N,), or
    (N, parts) if parts are padded each for itself, such as prompts on the left and completions on the right. Ties keep
    their order.

    Example:
        Lengths ``[3, 8, 4]`` with ``max_tokens=8`` give ``[tensor([1]), tensor([2, 0])]``.
    """
    parts = width if width.dim() == 2 else width[:, None]
    order = torch.argsort(parts.sum(1), descending=True, stable=True)
    bounds, longest = [0], [0] * parts.shape[1]
    for row, of_row in enumerate(parts[order].tolist()):
        longest = [max(pair) for pair in zip(longest, of_row, strict=True)]
        if row > bounds[-1] and (row + 1 - bounds[-1]) * sum(longest) > max_tokens:
            bounds.append(row)
            longest = of_row
    return [order[a:b] for a, b in pairwise([*bounds, len(order)]) if b > a]
