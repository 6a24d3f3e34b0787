"""Scopes: which completions a rule looks at, in which order, and which of them compete with each other.

Unbiased pruning looks at completions with a gradient only, since the others can be left out at no cost. Rules of
papers and of their code count every completion, those without a gradient too, so their scopes name all rows. A row
without a gradient may then be kept: that changes a mean over what is kept, and nothing needs to be computed for it.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dppo.types import Completions

Scope = Callable[[Completions], tuple[Tensor, Tensor]]
"""``scope(completions) -> (row_R, group_R)``: rows in the order in which rule and design see them, and the number of
the group each one competes in. Both (R,) int64; every row with a gradient is there once."""


def live_rows(completions: Completions) -> tuple[Tensor, Tensor]:
    """Rows with a gradient, by prompt and within a prompt by the advantage's sign; groups are prompts. The default.

    Neighbours exclude each other in a pivotal draw, so this order spreads the sample over prompts and signs.

    Args:
        completions: one row per completion.
    """
    side = completions.advantage_N.sign()
    order = torch.from_numpy(np.lexsort((side.numpy(), completions.group_N.numpy())))
    row = order[completions.live_N[order]]
    return row, completions.group_N[row]


def whole_prompts(completions: Completions) -> tuple[Tensor, Tensor]:
    """All rows, in the order of the step; groups are prompts.

    Args:
        completions: one row per completion.

    Source: CPPO, arXiv:2503.22342, section 3; PODS, arXiv:2504.13818.
    """
    return torch.arange(len(completions.group_N)), completions.group_N


def whole_processes(completions: Completions) -> tuple[Tensor, Tensor]:
    """All rows, in the order of the step; groups are the processes that rolled them out, one if that is not known.

    Args:
        completions: one row per completion.

    Source: CPPO's code for TRL, which ranks the rows of one process whatever their prompt.
    """
    row = torch.arange(len(completions.group_N))
    return row, torch.zeros_like(row) if completions.process_N is None else completions.process_N


def whole_step(completions: Completions) -> tuple[Tensor, Tensor]:
    """All rows, in the order of the step, in one group.

    Args:
        completions: one row per completion.

    Source: CPPO's code for verl, which ranks the batch of the step.
    """
    row = torch.arange(len(completions.group_N))
    return row, torch.zeros_like(row)


SCOPES: dict[str, Scope] = {
    "live_rows": live_rows,
    "whole_prompts": whole_prompts,
    "whole_processes": whole_processes,
    "whole_step": whole_step,
}
