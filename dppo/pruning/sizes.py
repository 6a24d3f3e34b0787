"""How many completions each prompt gets, from history: more where a completion teaches more, at least one each."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import require
from dppo.typed import check_fields

TINY = 1e-9
"""What is wanted least, as a share of what is wanted most, counts as no less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Completions by ``sqrt(V / c)`` of each prompt: V the variance of its reward, c its tokens; their sum is fixed.

    Sizes are settled before the rollout, so with a baseline that is exact for every size nothing has to be weighted but
    one over the size: each prompt counts alike.

    Raises:
        ConfigError: a field out of range.

    Source: Neyman (1934), optimal allocation; VIP, arXiv:2602.01601, for completions of prompts.
    """

    evenness: float = 0.3
    """Share of the completions that is spread evenly, in [0, 1], so that a prompt that becomes learnable is noticed."""
    most: int = 16
    """Completions of one prompt at most, >= 1; the mean is never above it."""

    def __post_init__(self) -> None:
        check_fields(self, "GroupSizes(evenness=0.3)")
        ranges = {
            f"evenness={self.evenness:g} must be in [0, 1]. Write evenness=0.3.": 0 <= self.evenness <= 1,
            f"most={self.most} must be >= 1. Write most=16.": self.most >= 1,
        }
        require("GroupSizes", ranges)

    def __call__(
        self, expected: Expected, tokens_Q: Tensor, generations: int, weight_F: Tensor | None = None
    ) -> Tensor:
        """(Q,) int64 completions of each prompt, >= 1, of ``generations * Q`` in all.

        They go by what history expects of each prompt, and by the tokens of one of its completions, (Q,) > 0;
        ``weight_F`` are those of the reward functions, None for 1 each.
        """
        worth_Q = (expected.total_variance_Q(weight_F) / tokens_Q.double()).sqrt()
        total, most = generations * len(worth_Q), max(self.most, generations)
        if not bool((worth_Q > 0).any()):
            return torch.full((len(worth_Q),), generations)
        share_Q = self.evenness / len(worth_Q) + (1 - self.evenness) * worth_Q / worth_Q.sum()
        return whole_numbers(share_Q * total, total, least=1, most=most)


def whole_numbers(wanted_Q: Tensor, total: int, *, least: int, most: int) -> Tensor:
    """(Q,) int64 numbers near those wanted, each from ``least`` to ``most``, with the sum asked for.

    What limits take or give is shared by all others in proportion; the largest remainders are rounded up, of equal ones
    the first.
    """
    wanted_Q = (wanted_Q / wanted_Q.max()).clamp_min(TINY)
    low, high = 0.0, max(most, 1) / TINY
    for _ in range(100):  # the factor at which the limited numbers have the right sum
        factor = (low + high) / 2
        below = float((wanted_Q * factor).clamp(least, most).sum()) < total
        low, high = (factor, high) if below else (low, factor)
    real_Q = (wanted_Q * high).clamp(least, most)
    whole_Q = (real_Q + 1e-9).floor().long()
    rest = total - int(whole_Q.sum())
    open_Q = torch.where(whole_Q < most, real_Q - whole_Q, -math.inf)
    whole_Q[torch.sort(open_Q, descending=True, stable=True).indices[:rest]] += 1
    return whole_Q
