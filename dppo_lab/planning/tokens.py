"""Completions of a pilot token by token: what drawing among them, or among their tokens, keeps and costs in noise.

Probabilities are those of ``dppo.pruning``, at the run's floors. A resample of prompts counts completions more often or
not at all, so every unit here has a weight.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dppo.pruning import Budget, inclusion_probabilities, selection_ceiling
from dppo.pruning.cuts import pool_numbers
from dppo.pruning.tokens import HEAD_FLOOR
from dppo_lab.planning.records import EVERYTHING, Kept, Option, Step

MOST_TOKENS = 200_000
"""Tokens that a plan looks at: those of the latest completions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSample:
    """N >= 1 completions with a gradient, and their S tokens, completion after completion."""

    moment_S: np.ndarray
    """(S,) second moment of each token's gradient as the step reckons it, >= 0, any unit."""
    owner_S: np.ndarray
    """(S,) the completion of each, from 0 without a gap, ascending."""
    pool_S: np.ndarray
    """(S,) the pool of each: tokens that every cut keeps together (``dppo.pruning.cuts.pool_numbers``)."""
    prompt_N: np.ndarray
    """(N,) a number for the prompt of each, as in ``Groups``."""
    weight_N: np.ndarray
    """(N,) how often each counts, >= 0."""
    generations: int
    """Completions of a group, against which advantages were taken."""
    scored: bool
    """Whether the run ranks completions by these moments (``completion_score: uncertainty``)."""

    @classmethod
    def of(
        cls, span_NT: Tensor, moment_NT: Tensor, prompt_N: Tensor, *, generations: int, scored: bool
    ) -> "TokenSample | None":
        """The latest completions, of all that have a gradient; None where there are none.

        ``span_NT`` is True at tokens that can be cut, ``moment_NT`` the second moment of each token's gradient.
        """
        length_N = span_NT.sum(1)
        used_N = (length_N.flip(0).cumsum(0).flip(0) <= MOST_TOKENS) & (length_N > 0)
        span_NT = span_NT[used_N]
        if not span_NT.any():
            return None
        moment_S, owner_S = moment_NT[used_N][span_NT].double().numpy(), span_NT.nonzero()[:, 0].numpy()
        return cls(
            moment_S=moment_S,
            owner_S=owner_S,
            pool_S=pool_numbers(moment_S, np.ones(len(moment_S)), owner_S)[2],
            prompt_N=prompt_N[used_N].numpy(),
            weight_N=np.ones(int(used_N.sum())),
            generations=generations,
            scored=scored,
        )

    def counted(self, times: dict[float, float]) -> "TokenSample":
        """The same in a resample, with how often each prompt is in it; others count once."""
        return replace(self, weight_N=np.array([times.get(float(prompt), 1.0) for prompt in self.prompt_N]))

    def fits(self, step: Step, option: Option) -> bool:
        """Whether completions of a step under an option have advantages as here."""
        group = option.group or step.generations
        return group == self.generations and option.baseline == "group" and bool(self.weight_N.any())

    def kept(self, option: Option, step: Step) -> Kept:
        """What an option keeps of completions with a gradient; all of it where it does not go by tokens."""
        found = EVERYTHING
        if option.completion_rate and self.scored:
            found = found.then(self._whole(option.completion_rate, step.floor, step.least))
        if option.token_rate or option.head_rate:
            found = found.then(self._parts(option.token_rate, option.head_rate, step.token_floor))
        return found

    def ceiling(self, level: str) -> float:
        """``selection_ceiling`` of ``tokens`` as cuts can part them, or of what reaches the ``head``, >= 1."""
        weight_S = self.weight_N[self.owner_S]
        value, cost = self.moment_S * weight_S, weight_S
        if level == "tokens":
            value, cost = (np.bincount(self.pool_S, each) for each in (value, cost))
        counted = cost > 0
        return selection_ceiling(torch.from_numpy(value[counted]), torch.from_numpy(cost[counted]))

    def _whole(self, rate: float, floor: float, least: float | None) -> Kept:
        """Completions at a rate, by the root of their moment."""
        length_N = np.bincount(self.owner_S).astype(float)
        value_N = np.bincount(self.owner_S, self.moment_S)
        prob_N = probabilities(self.weight_N, np.sqrt(value_N), rate, floor, least)
        share = _share(prob_N, length_N * self.weight_N)
        reached, noise = _share(prob_N, self.weight_N), _noise(prob_N, value_N * self.weight_N)
        return Kept(forwarded=share, reached=reached, scored=share, noise=noise)

    def _parts(self, rate: float, head_rate: float, floor: float) -> Kept:
        """Prefixes at a rate of cuts, and what of them reaches the head."""
        weight_S = self.weight_N[self.owner_S]
        reach_S, head_S = np.ones((2, len(weight_S)))
        if rate:
            moment_B, length_B = np.bincount(self.pool_S, self.moment_S), np.bincount(self.pool_S)
            counted_B = np.bincount(self.pool_S, weight_S)
            reach_S = probabilities(counted_B, np.sqrt(moment_B / length_B), rate, floor)[self.pool_S]
        first_S = np.diff(self.owner_S, prepend=-1) > 0
        forwarded_S = reach_S
        if head_rate:
            head_S = probabilities(weight_S, np.sqrt(self.moment_S), head_rate, HEAD_FLOOR)
            # Behind the last token drawn nothing is forwarded; a token that is reached is taken to be followed by all.
            forwarded_S = reach_S * (1 - _none_after(head_S, self.owner_S))
        return Kept(
            forwarded=_share(forwarded_S, weight_S),
            reached=_share(forwarded_S[first_S], self.weight_N),
            scored=_share(reach_S * head_S, weight_S),
            noise=_noise(reach_S * head_S, self.moment_S * weight_S),
        )


def probabilities(
    count_N: np.ndarray, score_N: np.ndarray, rate: float, floor: float, least: float | None = None
) -> np.ndarray:
    """(N,) probabilities proportional to scores, of units that count ``count_N`` times; 1 where none is dropped.

    ``rate`` is the share of units to drop, ``floor`` the lowest probability of one of mean score, or half of what is
    kept where that is smaller, and ``least`` that of one of score 0; None for the same.
    """
    prob_N, there_N = np.ones(len(count_N)), count_N > 0
    if rate and there_N.any():
        count, score = (each_N[there_N].astype(np.float64) for each_N in (count_N, score_N))
        floor = min(floor, (1 - rate) / 2)
        budget = Budget(rate=rate, floor=floor, least=None if least is None else min(least, floor))
        arrays = score * np.sqrt(count), budget.floors(score, count), count
        size_N, floor_N, cost_N = (torch.from_numpy(each) for each in arrays)
        spent = (1 - rate) * float(count.sum())
        prob_N[there_N] = inclusion_probabilities(size_N, spent, floor=floor_N, cost_N=cost_N).numpy()
    return prob_N


def _none_after(prob_S: np.ndarray, owner_S: np.ndarray) -> np.ndarray:
    """(S,) chance that independent draws keep neither a token nor any after it in its completion."""
    log_S = np.log1p(-np.minimum(prob_S, 1 - 1e-15))
    up_to_S, total_N = np.cumsum(log_S), np.bincount(owner_S, log_S)
    before_S = up_to_S - log_S - (np.cumsum(total_N) - total_N)[owner_S]
    return np.exp(total_N[owner_S] - before_S)


def _share(prob_N: np.ndarray, count_N: np.ndarray) -> float:
    return float(prob_N @ count_N / count_N.sum())


def _noise(prob_N: np.ndarray, value_N: np.ndarray) -> float:
    total = float(value_N.sum())
    return float((value_N / prob_N).sum()) / total if total > 0 else 1.0
