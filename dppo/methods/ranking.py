"""Completions kept for certain, by their place in a ranking: what CPPO and PODS do, in their papers and codes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from dppo.errors import in_words
from dppo.pruning import DETERMINISTIC, KEPT_MEAN, Score
from dppo.typed import check_fields
from dppo.types import Completions, Draw

Rivals = Literal["prompt", "process", "step"]


def largest(score_G: np.ndarray, kept: int) -> np.ndarray:
    """Places of the ``kept`` largest scores; of equal ones, the normal case of binary rewards, the first."""
    return np.argsort(-score_G, kind="stable")[:kept]


def kept_share(completions: int, dropped: Fraction) -> int:
    """``floor(completions * (1 - dropped))``, at least 1, in exact arithmetic."""
    return max(int(completions * (1 - dropped)), 1)


def mean_of_kept(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """(N,) ``N / kept`` where kept: a mean over the survivors."""
    return KEPT_MEAN.compute(keep_N, keep_N.double())


def one_each(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """(N,) 1 where kept, over a denominator that counts all."""
    return keep_N.double()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Completions that compete are ranked by a score, and some places of the ranking are kept. Biased by design.

    Completions without a gradient compete too, and are not forwarded if they are kept.
    """

    score: Score
    compete: Rivals = "prompt"
    """Completions that compete: those of a prompt, of the process that rolled them out, or all of the step."""
    choose: Callable[[np.ndarray, int], np.ndarray] = largest
    """``choose(score_G, kept)``: places of the ``kept`` completions among those that compete."""
    count: Callable[[int, Fraction], int] = kept_share
    """``count(completions, dropped)``: number of completions kept, given the share to drop."""
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor] = mean_of_kept
    """``weigh(keep_N, tokens_N, group_N) -> weight_N``, float64; completions of one group competed."""
    reasons: tuple[str, ...]
    """Why the choice and the weights are biased, one clause each."""
    rate: float = 0.5
    """Share of the completions to drop, in [0, 1); 0 keeps every completion that has a gradient."""

    def __post_init__(self) -> None:
        check_fields(self, 'METHODS["cppo"].completions.at_rate(0.5)', rate="[0, 1)", compete=get_args(Rivals))

    @property
    def bias(self) -> str:
        """Reasons for a biased gradient, one clause per part; empty if it is unbiased."""
        ranked, *weighted = self.reasons
        return "; ".join((ranked, DETERMINISTIC.reason, *weighted)) if self.rate else ""

    @property
    def prompt_exact(self) -> bool:
        """True if the choice among a prompt's completions does not depend on other prompts."""
        return self.rate == 0 or self.compete == "prompt"

    of_groups: ClassVar[bool] = True
    """It ranks whole groups, also if these are dealt to several optimizer steps."""

    def at_rate(self, rate: float) -> Self:
        """The same ranking that drops another share."""
        return replace(self, rate=rate)

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """The completions kept: probability 1 for them and 0 for all others."""
        live_N = completions.live_N
        if self.rate == 0 or not live_N.any():
            return Draw.whole(live_N)
        rivals = {"prompt": completions.group_N, "process": completions.process_N}
        if (group_N := rivals.get(self.compete)) is None:  # all compete, also if their processes are not known
            group_N = torch.zeros_like(completions.group_N)
        score_N = self.score(completions).double().numpy()
        # A rate of 0.9 means 9/10: in binary, 1 - 0.9 is below 1/10, and a completion too many is dropped.
        dropped = Fraction(self.rate).limit_denominator(10**9)
        keep_N = torch.zeros(len(score_N), dtype=torch.bool)
        for group in group_N.unique():
            row_G = (group_N == group).nonzero()[:, 0]
            count = self.count(len(row_G), dropped)
            keep_N[row_G[torch.from_numpy(self.choose(score_N[row_G.numpy()], count))]] = True
        weight_N = self.weigh(keep_N, completions.tokens_N.double(), group_N)
        return Draw(keep_N=keep_N, prob_N=keep_N.double(), weight_N=weight_N)

    def __str__(self) -> str:
        kept = f"{in_words(self.choose)} kept by {in_words(self.score)} within each {self.compete}, without chance"
        return f"{self.rate:g} of the completions pruned, {kept}"
