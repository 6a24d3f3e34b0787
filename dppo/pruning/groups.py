"""Which groups of completions a step can learn from."""

from collections.abc import Callable

import torch
from torch import Tensor

ROUNDINGS = 4
"""Rewards of a group that differ by no more than as many roundings of the largest are equal, as for advantages."""

Counts = Callable[[Tensor], Tensor]
"""``counts(reward_PG) -> (P,) bool``: which groups a step may be made of."""


def mixed(reward_PG: Tensor) -> Tensor:
    """True, (P,), for groups in which not all rewards are equal: the others have no gradient.

    Args:
        reward_PG: (P, G) rewards, NaN where there is none: those are left out.

    Source: GRESO, arXiv:2506.02177, section 3: groups of zero variance are discarded.
    """
    reward_PG = reward_PG if reward_PG.is_floating_point() else reward_PG.double()
    missing_PG = reward_PG.isnan()
    high_P = reward_PG.masked_fill(missing_PG, -torch.inf).amax(1)
    low_P = reward_PG.masked_fill(missing_PG, torch.inf).amin(1)
    return high_P - low_P > ROUNDINGS * torch.finfo(reward_PG.dtype).eps * torch.maximum(high_P.abs(), low_P.abs())


def deviating(reward_PG: Tensor) -> Tensor:
    """True, (P,), for groups whose rewards have a standard deviation (ddof 0) above 0, and for groups of one.

    Args:
        reward_PG: (P, G) rewards, NaN where there is none: those are left out.

    Source: DAPO, arXiv:2503.14476, section 3.2, where 0 < right < G; groups of one as in its code.
    """
    return mixed(reward_PG) if reward_PG.shape[1] > 1 else ~reward_PG.isnan()[:, 0]
