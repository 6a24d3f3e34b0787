"""What a model makes of its prompts: pass rates, lengths by outcome, and the longest of many. No clock is in here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dppo.errors import raise_problems

SHARES = 1e-6
"""How far from 1 shares may sum."""
DOUBLINGS = 21
"""Longest of 1, 2, 4, ... up to about a million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Prompts that are alike."""

    share: float
    """Of all prompts, in (0, 1]."""
    pass_rate: float
    """Probability that a completion is right, in [0, 1]."""
    right_tokens: float
    """Mean tokens of a right completion, > 0."""
    wrong_tokens: float
    """Mean tokens of a wrong one, > 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts and what the model makes of them.

    Raises:
        ConfigError: shares that do not sum to 1, or a field out of range.
    """

    kinds: tuple[Kind, ...]
    prompt_tokens: float
    """Mean tokens of a prompt, >= 1."""
    longest_prompt: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... prompts."""
    longest_completion: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... completions."""

    def __post_init__(self) -> None:
        problems = []
        if not self.kinds or abs(sum(kind.share for kind in self.kinds) - 1) > SHARES:
            total = sum(kind.share for kind in self.kinds)
            problems.append(
                f"shares of the kinds of prompts sum to {total:g} and must sum to 1. Divide each by {total:g}."
            )
        for kind in self.kinds:
            if not (kind.share > 0 and 0 <= kind.pass_rate <= 1 and min(kind.right_tokens, kind.wrong_tokens) > 0):
                problems.append(f"{kind} must have a share above 0, a pass rate in [0, 1] and lengths above 0.")
        if not (self.prompt_tokens >= 1 and self.longest_prompt and self.longest_completion):
            problems.append(f"prompt_tokens={self.prompt_tokens:g} must be >= 1, and longest ones must be there.")
        raise_problems("Workload", problems)

    @property
    def share_C(self) -> np.ndarray:
        """(C,) shares of the kinds."""
        return np.array([kind.share for kind in self.kinds])

    @property
    def rate_C(self) -> np.ndarray:
        """(C,) pass rates of the kinds."""
        return np.array([kind.pass_rate for kind in self.kinds])

    @property
    def tokens_2C(self) -> np.ndarray:
        """(2, C) mean tokens of right and of wrong completions."""
        return np.array([[kind.right_tokens, kind.wrong_tokens] for kind in self.kinds]).T

    @property
    def pass_rate(self) -> float:
        """Of all completions, in [0, 1]."""
        return float(self.share_C @ self.rate_C)


def longest_of(curve: Sequence[float], count: float) -> float:
    """Tokens of the longest of ``count``: a straight line in ``log2(count)`` between the doublings of a curve.

    Args:
        curve: expected longest of 1, 2, 4, ...; beyond its last entry it is flat.
        count: >= 1.
    """
    return float(np.interp(math.log2(max(count, 1.0)), np.arange(len(curve)), curve))


def longest_curve(length_N: np.ndarray, limit: float = math.inf) -> tuple[float, ...]:
    """Expected longest of 1, 2, 4, ... draws from lengths that were seen, cut off at ``limit``.

    No draw is longer than the longest that was seen: of many more draws than lengths it says too little.

    Args:
        length_N: (N,) tokens, at least one.
        limit: most tokens there can be.
    """
    length_N = np.sort(np.minimum(length_N, limit))
    below_N = np.arange(len(length_N) + 1) / len(length_N)
    return tuple(float(length_N @ np.diff(below_N ** (2**doubling))) for doubling in range(DOUBLINGS))


def log_normal_curve(mean: float, spread: float, limit: float = math.inf) -> tuple[float, ...]:
    """As ``longest_curve``, for lengths of a log-normal law of that mean, given by hand.

    Args:
        mean: tokens, > 0.
        spread: standard deviation of the logarithm, >= 0.
        limit: most tokens there can be.
    """
    place_N = (np.arange(2**16) + 0.5) / 2**16
    return longest_curve(np.exp(math.log(mean) - spread**2 / 2 + spread * ndtri(place_N)), limit)
