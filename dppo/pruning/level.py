"""One stage of pruning, for prompts, completions and rows: rate, floor, rule, design, weights, and ``auto``."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, in_words, raise_problems
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import Auto, Choice, choose
from dppo.pruning.designs import PIVOTAL, Design
from dppo.pruning.probabilities import ROUNDING, Budget, Rule, proportional
from dppo.pruning.weights import INVERSE_PROBABILITY, Weighting
from dppo.typed import check_fields
from dppo.types import Draw


def floor_problems(floor: float, rate: float, name: str, keeps: str) -> list[str]:
    """The sentence that refuses a floor above the share that a rate keeps; none if it fits.

    ``name`` is the user's name of the floor, and ``keeps`` the user's words for the rate: ``rate=0.5 keeps``.
    """
    if 0 < floor <= 1 - rate + ROUNDING:
        return []
    return [f"{name}={floor:g} must be in (0, {1 - rate:g}], the share that {keeps}. Try {name}={(1 - rate) / 2:g}."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One stage of pruning. Subclasses add the units and their scores."""

    usual_auto: ClassVar[Auto]
    """Rule for the choice of a rate if ``auto`` is None."""

    rate: float = 0.0
    """Share of the units that could be dropped to drop on average, in [0, 1); 0 turns pruning off."""
    rule: Rule = proportional
    """From scores to inclusion probabilities."""
    design: Design = PIVOTAL
    """From probabilities to a selection."""
    weighting: Weighting = INVERSE_PROBABILITY
    """From a selection to weights."""
    floor: float = 0.1
    """Lowest probability of a unit, in (0, 1 - rate]; no weight of this level exceeds ``1 / floor``."""
    least: float | None = None
    """Floor of a unit of score 0, in (0, 1]; None for ``floor``. It rises in a straight line to ``floor`` at the mean
    score, so weight times score is bounded, and no weight exceeds ``1 / least``."""
    budget: Literal["rows", "tokens"] = "rows"
    """Unit of ``rate``. With ``tokens``, units that cost more are kept less often."""
    auto: Auto | None = None
    """Rule by which the level chooses its rate, up to ``rate``; None for a fixed rate."""

    def __post_init__(self) -> None:
        check_fields(self, "Pruning(rate=0.5)")
        problems = []
        if not 0 <= self.rate < 1:
            problems.append(f"rate={self.rate:g} must be in [0, 1). To drop half, write rate=0.5.")
        else:
            problems += floor_problems(self.floor, self.rate, "floor", f"rate={self.rate:g} keeps")
        if self.least is not None and not 0 < self.least <= 1:
            problems.append(f"least={self.least:g} must be in (0, 1]. Try least=0.02.")
        if self.budget not in ("rows", "tokens"):
            problems.append(f"budget={self.budget!r} must be 'rows' or 'tokens'. Try budget='rows'.")
        if self.auto is not None and (reasons := self._reasons):
            problems.append(f"auto weighs variance, and this level has a bias: {reasons}. Write auto=None.")
        raise_problems(type(self).__name__, problems)

    @property
    def bias(self) -> str:
        """Reasons for a biased gradient, one clause per part; empty if it is unbiased."""
        return self._reasons if self.rate else ""

    @property
    def _reasons(self) -> str:
        return "; ".join(filter(None, (self.design.reason, self.weighting.bias)))

    def fixed(self) -> Self:
        """The same pruning at the largest rate that it may choose, as a given rate."""
        return self if self.auto is None else self._chosen(self.rate)

    def at_rate(self, rate: float) -> Self:
        """The same pruning at another rate; a floor that a higher rate may not allow becomes half of what is kept."""
        floor = min(self.floor, (1 - rate) / 2) if self.rate < rate < 1 else self.floor
        return replace(self, rate=rate, floor=floor)

    def words(self, scored: str) -> str:
        """Description of the stage; empty if nothing is dropped."""
        if not self.rate:
            return ""
        share = f"{self.rate:g}" if self.auto is None else f"auto, at most {self.rate:g}"
        least = "" if self.least is None else f" ({self.least:g} where nothing is lost)"
        return (
            f"{share} of the {self.budget} pruned, {in_words(self.rule)} rule on {scored}, {self.design.name} "
            f"draw, {self.weighting.name.replace('_', ' ')} weights, floor {self.floor:g}{least}"
        )

    def _probabilities(self, score_R: Tensor, tokens_R: Tensor, rate: float | None = None) -> Tensor:
        """(R,) at this rate or another one, without a new level: a step tries many rates."""
        cost_R = tokens_R if self.budget == "tokens" else None
        rate, floor = (self.rate, self.floor) if rate is None else (rate, self._floor_at(rate))
        least = None if self.least is None else min(self.least, floor)
        return self.rule(score_R, Budget(rate=rate, floor=floor, least=least, cost_N=cost_R))

    def _floor_at(self, rate: float) -> float:
        return min(self.floor, (1 - rate) / 2)

    def _chosen(self, rate: float) -> Self:
        """This level at a rate that was chosen; the floor gives way as in ``at_rate``."""
        return replace(self, rate=rate, floor=self._floor_at(rate), auto=None)

    def choice(self, samples: MomentSamples) -> Choice:
        """The rate that samples make worthwhile, by this level's rule and floor; ``auto`` draws at it.

        The draw has no part in the samples, so it is unbiased at the chosen rate.
        """
        score_N, cost_N = self._foreseen(samples), samples.expected_cost_N
        auto = self.auto or self.usual_auto
        largest = auto.largest if self.auto is None else self.rate
        return choose(auto, samples, lambda rate: self._probabilities(score_N, cost_N, rate), largest)

    def _foreseen(self, samples: MomentSamples) -> Tensor:
        """(N,) scores that a draw would have given the sampled units."""
        return samples.expected_N.sqrt()

    def at_chosen_rate(self, samples: MomentSamples) -> Self:
        """This pruning if its rate is fixed, else at the rate of ``choice``."""
        return self if self.auto is None else self._chosen(self.choice(samples).rate)

    def _select(self, unit_R: Tensor, prob_R: Tensor, score_R: Tensor, size: int, rng: np.random.Generator) -> Draw:
        """Draw among ``unit_R``, in the design's order, and put the result back into the order of all ``size``."""
        if not self.bias and bool((prob_R <= 0).any()):
            raise DesignError(
                f"{int((prob_R <= 0).sum())} units with a gradient have probability 0, so no weight can make up for "
                "them. Use rule=proportional with floor > 0, or a selection of your own that says its bias."
            )
        keep_R = self.design.draw(prob_R, score_R, rng)
        return scattered(unit_R, size, keep_R, prob_R, self.weighting(keep_R, prob_R))


def scattered(unit_R: Tensor, size: int, keep_R: Tensor, prob_R: Tensor, weight_R: Tensor) -> Draw:
    """A draw among some units as one over all of them; the others are dropped, with probability and weight 0."""
    keep_N, prob_N, weight_N = torch.zeros(size, dtype=torch.bool), *torch.zeros(2, size, dtype=torch.float64)
    keep_N[unit_R], prob_N[unit_R], weight_N[unit_R] = keep_R, prob_R, weight_R
    return Draw(keep_N=keep_N, prob_N=prob_N, weight_N=weight_N)
