"""One stage of pruning for prompts, completions and rows: rate and its schedule, floor, rule, design and weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

import numpy as np
from torch import Tensor

from dppo.errors import DesignError, in_words, raise_problems
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import Auto, Choice, choose
from dppo.pruning.designs import INVERSE_PROBABILITY, PIVOTAL, Design, Weighting, neighbours
from dppo.pruning.probabilities import ROUNDING, Budget, Rule, proportional
from dppo.pruning.scores import Score, absolute_advantage
from dppo.settings import FULL_SHARE
from dppo.typed import check_fields, range_problems, within
from dppo.types import Completions, Draw, scattered

Schedule = Callable[[float], float]
"""``schedule(done) -> factor``: from the share of training done to the factor of the rate, both in [0, 1]."""


def constant(done: float, *, until: float = FULL_SHARE) -> float:
    """1, for an unchanged rate."""
    return 1.0


def stop(done: float, *, until: float = FULL_SHARE) -> float:
    """1 before ``until``, a share of training in [0, 1], then 0: the last part of the run is not pruned.

    Source: InfoBatch, arXiv:2303.04947, section 3.3, with delta = 0.875 of the epochs.
    """
    return 1.0 if done < until else 0.0


def fade(done: float, *, until: float = FULL_SHARE) -> float:
    """1 up to ``until``, a share of training in [0, 1], then linear to 0 at the end of the run."""
    return 1.0 if done <= until else max(0.0, (1.0 - done) / (1.0 - until))


SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "stop": stop, "fade": fade}


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

    rate: float = 0.0
    """Share of the units that could be dropped to drop on average, in [0, 1); 0 turns pruning off."""
    rule: Rule = proportional
    """From scores to inclusion probabilities."""
    design: Design = PIVOTAL
    """From probabilities to a selection."""
    weighting: Weighting = INVERSE_PROBABILITY
    """From a selection to weights."""
    floor: float = 0.1
    """Lowest probability of a unit, in (0, 1 - rate]; without ``least`` no weight of this level exceeds ``1 / floor``.
    If ``auto`` chooses the rate, a floor above half of ``1 - rate`` is lowered to that."""
    least: float | None = None
    """Floor of a unit of score 0, in (0, 1]; None for ``floor``. It rises in a straight line to ``floor`` at the mean
    score, so weight times score is bounded, and no weight exceeds ``1 / least``."""
    budget: Literal["rows", "tokens"] = "rows"
    """Unit of ``rate``. With ``tokens``, units that cost more are kept less often."""
    auto: Auto | None = None
    """Rule by which the level chooses its rate, up to ``rate``; None for a fixed rate."""

    def __post_init__(self) -> None:
        check_fields(self, "Pruning(rate=0.5)")
        ranges = {"rate": "[0, 1)", "least": "(0, 1]", "budget": ("rows", "tokens")}
        problems = range_problems(self, "Pruning(rate=0.5, budget='rows')", **ranges)
        if within(self.rate, "[0, 1)"):
            problems += floor_problems(self.floor, self.rate, "floor", f"rate={self.rate:g} keeps")
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

    def choice(self, samples: MomentSamples) -> Choice:
        """The rate that samples make worthwhile, by this level's rule and floor. Only for levels with ``auto``."""
        assert self.auto is not None
        score_N, cost_N = self._foreseen(samples), samples.expected_cost_N
        return choose(self.auto, samples, lambda rate: self._chosen(rate)._probabilities(score_N, cost_N), self.rate)

    def at_chosen_rate(self, samples: MomentSamples) -> Self:
        """This pruning if its rate is fixed, else at the rate of ``choice``."""
        return self if self.auto is None else self._chosen(self.choice(samples).rate)

    def words(self, scored: str) -> str:
        """Description of the stage; empty if nothing is dropped."""
        share = f"{self.rate:g}" if self.auto is None else f"auto, at most {self.rate:g}"
        least = "" if self.least is None else f" ({self.least:g} where nothing is lost)"
        rules = f"{in_words(self.rule)} rule on {scored}, {self.design.name} draw"
        weights = f"{self.weighting.name.replace('_', ' ')} weights, floor {self.floor:g}{least}"
        return f"{share} of the {self.budget} pruned, {rules}, {weights}" if self.rate else ""

    def _chosen(self, rate: float) -> Self:
        """This level at a chosen rate; a floor above ``(1 - rate) / 2`` is lowered to that."""
        return replace(self, rate=rate, floor=min(self.floor, (1 - rate) / 2), auto=None)

    def _foreseen(self, samples: MomentSamples) -> Tensor:
        """(N,) scores that a draw would have given the sampled units."""
        return samples.expected_N.sqrt()

    def _probabilities(self, score_R: Tensor, tokens_R: Tensor) -> Tensor:
        """(R,) inclusion probabilities."""
        cost_R = tokens_R if self.budget == "tokens" else None
        least = None if self.least is None else min(self.least, self.floor)
        return self.rule(score_R, Budget(rate=self.rate, floor=self.floor, least=least, cost_N=cost_R)).double()

    def _select(self, unit_R: Tensor, prob_R: Tensor, score_R: Tensor, size: int, rng: np.random.Generator) -> Draw:
        """Draw among ``unit_R``, in the design's order, and put the result back into the order of all ``size``."""
        if not self.bias and bool((prob_R <= 0).any()):
            units = f"{int((prob_R <= 0).sum())} units with a gradient have probability 0: no weight makes up for them"
            raise DesignError(f"{units}. Use rule=proportional with floor > 0, or a selection that states its bias.")
        keep_R = self.design.draw(prob_R, score_R, rng)
        weight_R = self.weighting.compute(keep_R, prob_R)
        return scattered(Draw(keep_N=keep_R, prob_N=prob_R, weight_N=weight_R), unit_R, size)


class Selection(Protocol):
    """How completions are chosen to be trained on. ``Pruning`` is one.

    A selection may also state: ``score``, from which the history gets the signal of a group; ``prompt_exact``, False
    if the choice among a prompt's completions depends on other prompts; ``of_groups``, True if it needs whole groups.
    """

    @property
    def rate(self) -> float:
        """Share of the completions to drop, in [0, 1); at 0 every one with a gradient is kept."""
        ...

    @property
    def bias(self) -> str:
        """Reasons for a biased gradient, one clause per part; empty if it is unbiased."""
        ...

    def draw(self, completions: Completions, rng: np.random.Generator, /) -> Draw:
        """Choose among all completions of a step: keep, probability and weight of each, in the order given."""
        ...

    def at_rate(self, rate: float, /) -> Self:
        """The same selection that drops another share."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning(Level):
    """Pruning of completions. The defaults drop only those without a gradient."""

    score: Score = absolute_advantage
    """Score of each completion."""

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """Choose the completions to train on. Those without a gradient are dropped, which is exact."""
        live_N = completions.live_N
        if self.rate == 0 or not live_N.any():
            return Draw.whole(live_N)
        level = self.informed(completions)
        if level.auto is not None:
            return level.at_chosen_rate(self.samples(completions)).draw(completions, rng)
        unit_R, score_R, tokens_R = self._scored(completions)
        return self._select(unit_R, level._probabilities(score_R, tokens_R), score_R, live_N.numel(), rng)

    def informed(self, completions: Completions) -> "Pruning":
        """This pruning, with one floor for all if the scores leave out a term of unknown size."""
        return self if completions.other is not None else replace(self, least=None)

    def samples(self, completions: Completions) -> MomentSamples:
        """Squared scores and tokens of the completions with a gradient, those of a prompt to be resampled together.

        The tokens of all completions are paid in any case: their rollout comes before the draw.
        """
        unit_R, score_R, tokens_R = self._scored(completions)
        rolled_out = completions.tokens_N.double().sum().item()
        return MomentSamples.known(score_R.square(), tokens_R, completions.group_N[unit_R], paid=rolled_out)

    def _scored(self, completions: Completions) -> tuple[Tensor, Tensor, Tensor]:
        """(R,) completions with a gradient in the order of a draw, their scores and tokens."""
        unit_R = neighbours(completions)
        score_R = self.score(completions)[unit_R].double()
        if completions.weight_N is not None:  # the gradient is that of the weighted completion
            score_R = score_R * completions.weight_N[unit_R]
        return unit_R, score_R, completions.tokens_N[unit_R].double().clamp_min(1)

    def __str__(self) -> str:
        return self.words(in_words(self.score))
