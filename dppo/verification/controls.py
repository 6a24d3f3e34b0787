"""What is known to be wrong, whatever the rollouts are, and has to be reported as wrong."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dppo.methods import METHODS, Method
from dppo.methods.ranking import Ranking, kept_share, largest, mean_of_kept, whole_prompts
from dppo.pruning import DETERMINISTIC, UNWEIGHTED, PromptPruning, Pruning, Score, TokenPruning, best_cuts, uniform
from dppo.pruning.designs import neighbours
from dppo.pruning.prune import scattered
from dppo.types import Completions, Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOfLive:
    """CPPO's rule among completions with a gradient alone: the largest scores of each prompt, and a mean over them."""

    score: Score
    rate: float

    @property
    def bias(self) -> str:
        """Why it is biased."""
        return METHODS["cppo"].completions.at_rate(self.rate).bias

    def at_rate(self, rate: float) -> Self:
        """The same rule that drops another share."""
        return replace(self, rate=rate)

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """The completions kept, without chance."""
        unit_R = neighbours(completions)
        ranking = Ranking(
            score=self.score,
            compete=whole_prompts,
            choose=largest,
            count=kept_share,
            weigh=mean_of_kept,
            reasons=(self.bias,),
            rate=self.rate,
        )
        draw = ranking.draw(completions.take(unit_R), rng)
        return scattered(unit_R, len(completions.live_N), draw.keep_N, draw.prob_N, draw.weight_N)


def _up_to_the_largest(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    return ((torch.arange(span_NT.shape[1]) <= moment_NT.argmax(1, keepdim=True)) & span_NT).double()


def _without_floor(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    reach_NT = best_cuts(moment_NT, span_NT, rate, floor)
    return torch.where(reach_NT > 0.5, reach_NT, 0.0)


def wrong_cuts(rate: float) -> dict[str, TokenPruning]:
    """Cuts that are biased: behind the token that matters most, which later tokens decide, and without a floor."""
    rules = {"cuts by what is sampled later": _up_to_the_largest, "cuts without a floor": _without_floor}
    return {name: TokenPruning(rate=rate, cut_rule=rule) for name, rule in rules.items()}


def wrong_methods(right: Method, right_prompts: Method, rate: float) -> dict[str, Method]:
    """Methods that are biased, made from two that are not.

    Args:
        right: prunes completions; gives loss, normaliser and score.
        right_prompts: prunes prompts, with an exact normaliser: a ratio of two sums would hide that all weights are
            wrong by the same factor.
        rate: share that they prune.
    """
    half = Pruning(rate=rate, score=right.score, rule=uniform)
    return {
        "CPPO's rule": replace(right, completions=TopOfLive(score=right.score, rate=rate)),
        "the deterministic rule": replace(right, completions=replace(half, design=DETERMINISTIC)),
        "completion weights forgotten": replace(right, completions=replace(half, weighting=UNWEIGHTED)),
        "prompt weights forgotten": replace(
            right_prompts, prompts=PromptPruning(rate=rate, rule=uniform, weighting=UNWEIGHTED)
        ),
    }
