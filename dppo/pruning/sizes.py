"""Completions of each prompt from history: more for prompts with a larger signal, at least one each."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.context import Expected
from dppo.typed import check_fields

TINY = 1e-9
"""Smallest number wanted, as a share of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Completions in proportion to ``sqrt(V / c)`` of each prompt: V the variance of its reward, c its tokens.

    Sizes are fixed before the rollout. With a baseline that is exact for every size, one over the size is the only
    weight: each prompt counts alike.

    Source: Neyman (1934), optimal allocation; VIP, arXiv:2602.01601, for completions of prompts.
    """

    evenness: float = 0.3
    """Share of the completions that is spread evenly, in [0, 1], so a prompt that becomes learnable is noticed."""
    most: int = 16
    """Most completions of one prompt, >= 1; raised to the mean if that is larger."""

    def __post_init__(self) -> None:
        check_fields(self, "GroupSizes(evenness=0.3, most=16)", evenness="[0, 1]", most="[1, inf)")

    def __call__(
        self, expected: Expected, tokens_Q: Tensor, generations: int, weight_F: Tensor | None = None
    ) -> Tensor:
        """(Q,) int64 completions of each prompt, >= 1, with the sum ``generations * Q``.

        ``tokens_Q`` (Q,) > 0 are the expected tokens of a completion, ``weight_F`` (F,) weights of reward functions.
        """
        size_Q = (expected.total_variance_Q(weight_F) / tokens_Q.double()).sqrt()
        total, most = generations * len(size_Q), max(self.most, generations)
        if not bool((size_Q > 0).any()):
            return torch.full((len(size_Q),), generations)
        share_Q = self.evenness / len(size_Q) + (1 - self.evenness) * size_Q / size_Q.sum()
        return whole_numbers(share_Q * total, total, least=1, most=most)


def whole_numbers(wanted_Q: Tensor, total: int, *, least: int, most: int) -> Tensor:
    """(Q,) int64 numbers in proportion to ``wanted_Q``, each from ``least`` to ``most``, with the sum ``total``.

    The largest remainders are rounded up, the first of equal ones.
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
