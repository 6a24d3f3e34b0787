"""From groups that were rolled out to kinds of prompts: pass rates without a formula for them, lengths by outcome."""

from dataclasses import dataclass

import numpy as np

from dppo.errors import raise_problems
from dppo.rng import Purpose, generator
from dppo_lab.planning.workload import Kind, Workload

RATES = (0.0, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""Pass rates that are told apart: groups of a few completions tell no more."""
ROUNDS = 1000
"""Of expectation and maximisation."""
RESAMPLES = 100
"""Of an interval: each is a plan of its own."""
LEAST = 1e-3
"""Share below which a kind is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Q groups of completions as they were rolled out.

    Raises:
        ConfigError: there are none, or columns of different lengths.
    """

    right_Q: np.ndarray
    """(Q,) right completions of each."""
    size_Q: np.ndarray
    """(Q,) completions of each, >= 1."""
    right_tokens_Q: np.ndarray
    """(Q,) tokens of the right ones, added up; NaN where lengths are not known by outcome."""
    wrong_tokens_Q: np.ndarray
    """(Q,) tokens of the wrong ones, added up; NaN likewise."""
    weight_Q: np.ndarray
    """(Q,) prompts each stands for: one over its probability of being rolled out."""
    prompt_Q: np.ndarray
    """(Q,) which prompt each is of, any number: groups of one prompt are resampled together."""
    prompt_tokens: float
    """Mean tokens of a prompt, >= 1."""
    tokens: float
    """Mean tokens of a completion, > 0."""
    longest_prompt: tuple[float, ...]
    """Expected tokens of the longest of 1, 2, 4, ... prompts."""
    longest_completion: tuple[float, ...]
    """The same of completions."""

    def __post_init__(self) -> None:
        columns = (self.right_Q, self.size_Q, self.right_tokens_Q, self.wrong_tokens_Q, self.weight_Q, self.prompt_Q)
        if len({len(column) for column in columns}) != 1 or not len(self.right_Q):
            lengths = [len(column) for column in columns]
            raise_problems("Groups", [f"columns of {lengths} groups: they must be of equal lengths, and not of 0."])

    def __len__(self) -> int:
        return len(self.right_Q)

    def workload(self, weight_Q: np.ndarray, limit: float) -> Workload:
        """The workload that these groups come from, each counted as often as ``weight_Q`` says.

        Args:
            weight_Q: (Q,) >= 0, some above 0.
            limit: most tokens of a completion.
        """
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
        """(M, Q) weights of the groups in each resample of prompts; the numbers are fixed, so equal groups give equal
        intervals."""
        _, place_Q = np.unique(self.prompt_Q, return_inverse=True)
        prompts = int(place_Q.max()) + 1
        rng = generator(0, Purpose.CHECK, prompts, 7)
        drawn_MP = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
        return drawn_MP[:, place_Q] * self.weight_Q


def pass_rates(right_Q: np.ndarray, size_Q: np.ndarray, weight_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(C,) shares of prompts of each of ``RATES``, and (Q, C) how likely each group is of each.

    Args:
        right_Q: (Q,) right completions of each group.
        size_Q: (Q,) completions of each.
        weight_Q: (Q,) how often each counts.

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
