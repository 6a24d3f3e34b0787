"""Completions kept for certain, by their place in a ranking: what CPPO and PODS do, in their papers and codes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dppo.errors import in_words, raise_problems
from dppo.pruning import DETERMINISTIC, KEPT_MEAN, Score
from dppo.pruning.stated import Stated
from dppo.typed import check_fields
from dppo.types import Completions, Draw

MAX_DENOMINATOR = 10**9
"""Rates are read as the fraction that was meant: 0.9 is 9/10, of which 1 - 0.9 in binary falls short."""

Choose = Callable[[np.ndarray, int], np.ndarray]
"""``choose(score_G, kept)``: places of the completions kept among those that compete, given how many are."""
Count = Callable[[int, Fraction], int]
"""``count(completions, dropped)``: how many of some completions are kept, given the share to drop."""
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``weigh(keep_N, tokens_N, group_N) -> weight_N``, float64: of tokens that carry loss, float64, and who competed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition(Stated):
    """Which completions compete, and whether those of different prompts do."""

    across_prompts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Completions that compete are ranked by a score, and some places of the ranking are kept. Biased by design.

    Completions without a gradient compete too, and are not forwarded if they are kept.
    """

    score: Score
    compete: Callable[[Completions], Tensor]
    """(N,) integer: completions with equal numbers compete with each other. ``Competition``, or a plain function, which
    counts as one across prompts."""
    choose: Choose
    count: Count
    weigh: Weigh
    reasons: tuple[str, ...]
    """Why the choice and the weights are biased, one clause each."""
    rate: float = 0.5
    """Share of the completions to drop, in [0, 1); 0 keeps every completion that has a gradient."""

    def __post_init__(self) -> None:
        check_fields(self, 'METHODS["cppo"].completions.at_rate(0.5)')
        if not 0 <= self.rate < 1:
            raise_problems("Ranking", [f"rate={self.rate:g} must be in [0, 1). To drop half, write rate=0.5."])

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of the full batch, one clause per part; empty if it is."""
        ranked, *weighted = self.reasons
        return "; ".join((ranked, DETERMINISTIC.reason, *weighted)) if self.rate else ""

    @property
    def prompt_exact(self) -> bool:
        """True if the choice among a prompt's completions does not depend on other prompts."""
        return self.rate == 0 or not getattr(self.compete, "across_prompts", True)

    @property
    def of_groups(self) -> bool:
        """True: it ranks whole groups, also if these are dealt to several optimizer steps."""
        return True

    def at_rate(self, rate: float) -> Self:
        """The same ranking that drops another share."""
        return replace(self, rate=rate)

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """The completions kept: probability 1 for them and 0 for all others."""
        live_N = completions.live_N
        if self.rate == 0 or not live_N.any():
            return Draw.whole(live_N)
        group_N, score_N = self.compete(completions), self.score(completions).double().numpy()
        dropped = Fraction(self.rate).limit_denominator(MAX_DENOMINATOR)
        keep_N = torch.zeros(len(score_N), dtype=torch.bool)
        for group in group_N.unique():
            row_G = (group_N == group).nonzero()[:, 0]
            count = self.count(len(row_G), dropped)
            keep_N[row_G[torch.from_numpy(self.choose(score_N[row_G.numpy()], count))]] = True
        weight_N = self.weigh(keep_N, completions.tokens_N.double(), group_N)
        return Draw(keep_N=keep_N, prob_N=keep_N.double(), weight_N=weight_N)

    def __str__(self) -> str:
        return (
            f"{self.rate:g} of the completions pruned, {in_words(self.choose)} kept by {in_words(self.score)} within "
            f"{in_words(self.compete)}, without chance"
        )


def _prompts(completions: Completions) -> Tensor:
    return completions.group_N


whole_prompts = Competition(name="whole_prompts", compute=_prompts, across_prompts=False)
"""(N,) completions of a prompt compete. Source: CPPO, arXiv:2503.22342, section 3; PODS, arXiv:2504.13818."""


def largest(score_G: np.ndarray, kept: int) -> np.ndarray:
    """Places of the ``kept`` largest scores; of equal ones, which binary rewards make the normal case, the first."""
    return np.argsort(-score_G, kind="stable")[:kept]


def kept_share(completions: int, dropped: Fraction) -> int:
    """``floor(completions * (1 - dropped))``, but no less than 1, in exact arithmetic: 9/10 of 10 dropped keep 1."""
    return max(int(completions * (1 - dropped)), 1)


def mean_of_kept(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """(N,) ``N / kept`` where kept: a mean over the survivors."""
    return KEPT_MEAN(keep_N, keep_N.double())


def one_each(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """(N,) 1 where kept, over a denominator that counts all."""
    return keep_N.double()
