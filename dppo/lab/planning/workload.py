"""Pass rates of prompts, lengths by outcome, and the longest of many, estimated from groups that were rolled out."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dppo.rng import Purpose, generator

DOUBLINGS = 21
"""Longest of 1, 2, 4, ... up to about a million."""
RATES = (0.0, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""Pass rates that are told apart: groups of a few completions tell no more."""
ROUNDS = 1000
"""Of expectation and maximisation."""
RESAMPLES = 100
"""Of an interval: each is a plan of its own."""
SPREAD = 0.5
"""Deviation of the logarithm of lengths of which only the mean is known."""
LEAST = 1e-3
"""Share below which a kind is left out."""


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
    """Prompts and what the model makes of them."""

    kinds: tuple[Kind, ...]
    """Their shares sum to 1."""
    prompt_tokens: float
    """Mean tokens of a prompt, >= 1."""
    longest_prompt: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... prompts."""
    longest_completion: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... completions."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Q >= 1 groups of completions that were rolled out."""

    right_Q: np.ndarray
    """(Q,) right completions of each."""
    size_Q: np.ndarray
    """(Q,) completions of each, >= 1."""
    right_tokens_Q: np.ndarray
    """(Q,) summed tokens of the right ones; NaN where lengths are not known by outcome."""
    wrong_tokens_Q: np.ndarray
    """(Q,) summed tokens of the wrong ones; NaN likewise."""
    weight_Q: np.ndarray
    """(Q,) prompts each stands for: one over its probability of being rolled out."""
    prompt_Q: np.ndarray
    """(Q,) a number for each group's prompt: groups of one prompt are resampled together."""
    prompt_tokens: float
    """Mean tokens of a prompt, >= 1."""
    tokens: float
    """Mean tokens of a completion, > 0."""
    longest_prompt: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... prompts."""
    longest_completion: tuple[float, ...]
    """The same of completions."""

    def __len__(self) -> int:
        return len(self.right_Q)

    def workload(self, weight_Q: np.ndarray, limit: float) -> Workload:
        """The workload that these groups come from, each counted ``weight_Q`` times; ``limit`` is on completions."""
        share_C, belongs_QC = pass_rates(self.right_Q, self.size_Q, weight_Q)
        known_Q = ~np.isnan(self.right_tokens_Q + self.wrong_tokens_Q)
        weight_QC = (weight_Q * known_Q)[:, None] * belongs_QC
        right_C = _mean_tokens(weight_QC, np.nan_to_num(self.right_tokens_Q), self.right_Q, self.tokens)
        wrong_C = _mean_tokens(weight_QC, np.nan_to_num(self.wrong_tokens_Q), self.size_Q - self.right_Q, self.tokens)
        large_C = share_C >= LEAST
        columns = np.stack([share_C / share_C[large_C].sum(), np.array(RATES), right_C, wrong_C], axis=1)
        return Workload(
            kinds=tuple(
                Kind(share=share, pass_rate=rate, right_tokens=right, wrong_tokens=wrong)
                for share, rate, right, wrong in columns[large_C].tolist()
            ),
            prompt_tokens=self.prompt_tokens,
            longest_prompt=self.longest_prompt,
            longest_completion=tuple(min(length, limit) for length in self.longest_completion),
        )

    def resampled(self) -> np.ndarray:
        """(M, Q) weights of the groups in resamples of prompts; the seed is fixed: equal groups, equal intervals."""
        _, place_Q = np.unique(self.prompt_Q, return_inverse=True)
        prompts = int(place_Q.max()) + 1
        rng = generator(0, Purpose.CHECK, prompts, 7)
        drawn_MP = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
        return drawn_MP[:, place_Q] * self.weight_Q


def pass_rates(right_Q: np.ndarray, size_Q: np.ndarray, weight_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(C,) shares of prompts of each of ``RATES``, and (Q, C) how likely each group is of each.

    Source: the nonparametric maximum likelihood of a mixture, Laird (1978), by expectation and maximisation.
    """
    rate_C = np.array(RATES)
    pair_X2, place_Q = np.unique(np.stack([right_Q, size_Q], axis=1), axis=0, return_inverse=True)
    right_X, size_X = pair_X2.T
    likelihood_XC = rate_C ** right_X[:, None] * (1 - rate_C) ** (size_X - right_X)[:, None]
    weight_X = np.bincount(place_Q.ravel(), weights=weight_Q, minlength=len(pair_X2))
    share_C, belongs_XC = np.full(len(RATES), 1 / len(RATES)), likelihood_XC
    for _ in range(ROUNDS):
        joint_XC = likelihood_XC * share_C
        belongs_XC = joint_XC / joint_XC.sum(1, keepdims=True)
        share_C = weight_X @ belongs_XC / weight_X.sum()
    return share_C, belongs_XC[place_Q.ravel()]


def _mean_tokens(weight_QC: np.ndarray, tokens_Q: np.ndarray, count_Q: np.ndarray, otherwise: float) -> np.ndarray:
    """(C,) mean tokens of a completion of each kind: that of all kinds where a kind has none, or ``otherwise``."""
    total_C, count_C = weight_QC.T @ tokens_Q, weight_QC.T @ count_Q
    overall = total_C.sum() / count_C.sum() if count_C.sum() > 0 else otherwise
    enough_C = count_C > 1e-6 * max(count_C.sum(), 1e-12)
    return np.where(enough_C, total_C / np.where(enough_C, count_C, 1.0), overall)


def longest_of(curve: Sequence[float], count: float) -> float:
    """Tokens of the longest of ``count``: linear in ``log2(count)`` between the doublings of a curve, flat beyond."""
    return float(np.interp(math.log2(max(count, 1.0)), np.arange(len(curve)), curve))


def longest_curve(length_N: np.ndarray) -> tuple[float, ...]:
    """Expected longest of 1, 2, 4, ... draws from lengths that were seen, of which none is longer."""
    length_N = np.sort(length_N)
    below_N = np.arange(len(length_N) + 1) / len(length_N)
    curve = []
    for _ in range(DOUBLINGS):
        curve.append(float(length_N @ np.diff(below_N)))
        below_N = below_N**2
    return tuple(curve)


def log_normal_curve(mean: float) -> tuple[float, ...]:
    """As ``longest_curve``, for log-normal lengths of that mean whose logarithm has the deviation ``SPREAD``."""
    return tuple(mean * each for each in _curve_of_mean_one())


@functools.cache
def _curve_of_mean_one() -> tuple[float, ...]:
    place_N = (np.arange(2**16) + 0.5) / 2**16
    return longest_curve(np.exp(SPREAD * ndtri(place_N) - SPREAD**2 / 2))
