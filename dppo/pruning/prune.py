"""One level of pruning as a value: what to score by, which probabilities, how to draw, how to weight."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, raise_problems
from dppo.evidence import Evidence
from dppo.pruning.calibration import Calibration, by_others
from dppo.pruning.ceiling import COMPLETION_AUTO, PROMPT_AUTO, Auto, Choice, choose
from dppo.pruning.designs import PIVOTAL, WHOLE, Design, neighbours
from dppo.pruning.probabilities import ROUNDING, Budget, Rule, proportional
from dppo.pruning.scores import Score, absolute_advantage
from dppo.pruning.weights import INVERSE_PROBABILITY, Weighting
from dppo.typed import check_fields
from dppo.types import Candidates, Completions, Draw


def floor_problems(floor: float, rate: float, name: str, keeps: str) -> list[str]:
    """The sentence that refuses a floor above what a rate keeps on average; none where it fits.

    ``name`` is that of the floor where a user sets it, and ``keeps`` what the rate is called there: ``rate=0.5 keeps``.
    """
    if 0 < floor <= 1 - rate + ROUNDING:
        return []
    return [f"{name}={floor:g} must be in (0, {1 - rate:g}], the share that {keeps}. Try {name}={(1 - rate) / 2:g}."]


class Selection(Protocol):
    """How completions are chosen to be trained on. ``Pruning`` is one.

    A selection may also have a ``score``, from which the history gets the signal of a group.
    """

    @property
    def rate(self) -> float:
        """Share of the completions that it drops, in [0, 1); at 0 it keeps every one that has a gradient."""
        ...

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of the full batch, one clause per part; empty if it is."""
        ...

    def draw(self, completions: Completions, rng: np.random.Generator, /) -> Draw:
        """Choose among all completions of a step: keep, probability and weight of each, in the order given."""
        ...

    def at_rate(self, rate: float, /) -> Self:
        """The same selection that drops another share."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """What pruning prompts and pruning completions have in common."""

    usual_auto: ClassVar[Auto]
    """How a rate would be chosen where ``auto`` is None."""

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
    """Where given, in (0, 1], ``floor`` is that of a unit of mean score: it falls in a straight line to ``least`` for
    one that has nothing to lose, so weight times score is bounded, and no weight exceeds ``1 / least``."""
    budget: Literal["rows", "tokens"] = "rows"
    """What ``rate`` is a share of: with ``tokens``, units that cost more are kept less often."""
    auto: Auto | None = None
    """How the level chooses its own rate; ``rate`` is then the most that it drops. None for the rate as it is."""

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
        """Why the expected gradient is not that of the full batch, one clause per part; empty if it is."""
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
        """How units are dropped, in words; empty where none are."""
        if not self.rate:
            return ""
        share = f"{self.rate:g}" if self.auto is None else f"auto, at most {self.rate:g}"
        least = "" if self.least is None else f" ({self.least:g} where nothing is lost)"
        return (
            f"{share} of the {self.budget} pruned, {self.rule.__name__} rule on {scored}, {self.design.name} "
            f"draw, {self.weighting.name.replace('_', ' ')} weights, floor {self.floor:g}{least}"
        )

    def _probabilities(self, score_R: Tensor, tokens_R: Tensor, rate: float | None = None) -> Tensor:
        """(R,) at this rate, or at one that is looked at, for which no level is made: a step looks at many."""
        cost_R = tokens_R if self.budget == "tokens" else None
        rate, floor = (self.rate, self.floor) if rate is None else (rate, self._floor_at(rate))
        least = None if self.least is None else min(self.least, floor)
        return self.rule(score_R, Budget(rate=rate, floor=floor, least=least, cost_N=cost_R))

    def _floor_at(self, rate: float) -> float:
        return min(self.floor, (1 - rate) / 2)

    def _chosen(self, rate: float) -> Self:
        """This level at a rate that was chosen; the floor gives way as in ``at_rate``."""
        return replace(self, rate=rate, floor=self._floor_at(rate), auto=None)

    def choice(self, evidence: Evidence) -> Choice:
        """The rate that some evidence says is worth having, by this level's rule and floor; ``auto`` draws at it.

        It is fixed before the draw by numbers that the draw has no part in, so the draw is unbiased at it. Evidence is
        of completions with a gradient, of this step and of earlier ones, or of earlier visits of prompts.
        """
        score_N, cost_N = self._foreseen(evidence), evidence.expected_cost_N
        auto = self.auto or self.usual_auto
        largest = auto.largest if self.auto is None else self.rate
        return choose(auto, evidence, lambda rate: self._probabilities(score_N, cost_N, rate), largest)

    def _foreseen(self, evidence: Evidence) -> Tensor:
        """(N,) what a draw would have ranked units of the evidence by."""
        return evidence.expected_N.sqrt()

    def at_chosen_rate(self, evidence: Evidence) -> Self:
        """This pruning where its rate is given, else at the rate of ``choice``."""
        return self if self.auto is None else self._chosen(self.choice(evidence).rate)

    def _select(self, unit_R: Tensor, prob_R: Tensor, score_R: Tensor, size: int, rng: np.random.Generator) -> Draw:
        """Draw among ``unit_R``, in the design's order, and put the result back into the order of all ``size``."""
        if not self.bias and bool((prob_R <= 0).any()):
            raise DesignError(
                f"{int((prob_R <= 0).sum())} units with a gradient have probability 0, so no weight can make up for "
                "them. Use rule=proportional with floor > 0, or a selection of your own that says its bias."
            )
        keep_R = self.design.draw(prob_R, score_R, rng)
        return scattered(unit_R, size, keep_R, prob_R, self.weighting(keep_R, prob_R))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning(_Level):
    """How completions are dropped. The defaults drop nothing but those without a gradient.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    usual_auto: ClassVar[Auto] = COMPLETION_AUTO

    score: Score = absolute_advantage
    """What completions are ranked by."""

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """Choose the completions to train on. Those without a gradient are dropped, which is exact.

        Returns:
            Keep, probability and weight per completion, in the order given. Without live completions nothing is kept.

        Raises:
            ConfigError: if the score needs log-probabilities that are not there.
            DesignError: if a live completion has probability 0 and the pruning does not say that it is biased.
        """
        live_N = completions.live_N
        if self.rate == 0 or not live_N.any():
            return Draw.whole(live_N)
        level = self.informed(completions)
        if level.auto is not None:
            return level.at_chosen_rate(self.evidence(completions)).draw(completions, rng)
        unit_R, score_R, tokens_R = self._scored(completions)
        return self._select(unit_R, level._probabilities(score_R, tokens_R), score_R, live_N.numel(), rng)

    def informed(self, completions: Completions) -> "Pruning":
        """This pruning, with one floor for all where scores leave out a term whose size is not known."""
        return self if completions.other is not None else replace(self, least=None)

    def evidence(self, completions: Completions) -> Evidence:
        """Squared scores and tokens of the completions with a gradient, those of a prompt to be resampled together.

        What is paid anyway are the tokens of all completions: their rollout comes before the draw.
        """
        unit_R, score_R, tokens_R = self._scored(completions)
        rolled_out = completions.tokens_N.double().sum().item()
        return Evidence.known(score_R.square(), tokens_R, completions.group_N[unit_R], paid=rolled_out)

    def _scored(self, completions: Completions) -> tuple[Tensor, Tensor, Tensor]:
        """(R,) completions with a gradient in the order of a draw, their scores and tokens."""
        unit_R = neighbours(completions)
        score_R = self.score(completions)[unit_R].double()
        if completions.weight_N is not None:  # the gradient is that of the weighted completion
            score_R = score_R * completions.weight_N[unit_R]
        return unit_R, score_R, completions.tokens_N[unit_R].double().clamp_min(1)

    def __str__(self) -> str:
        name = getattr(self.score, "__name__", type(self.score).__name__)
        return self.words(name.replace("_", " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPruning(_Level):
    """How candidate prompts are dropped before rollout, ranked by the signal in their history.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    usual_auto: ClassVar[Auto] = PROMPT_AUTO

    calibration: Calibration | None = None
    """What prompts are worth by what those gave of which history expected as much; ``auto`` sets it at the rate that it
    chooses. None for what history expects as it is."""

    def draw(self, candidates: Candidates, rng: np.random.Generator, *, multiple: int = 1) -> Draw:
        """Choose the prompts to roll out. Prompts without a history always are.

        With ``auto`` nothing is pruned: draw with ``at_chosen_rate(evidence)``, which has chosen.

        The expected number is made an integer before the draw, at least 1 and a multiple of ``multiple``, so that a
        fixed-size design keeps exactly that many.

        Args:
            candidates: the block, from history alone.
            rng: source of randomness; seed it by run, step and purpose so that every rank draws the same.
            multiple: the number kept is raised to a multiple of this, >= 1, for equal shares per rank.

        Returns:
            Keep, probability and weight per candidate, in the order given.

        Raises:
            DesignError: if no multiple of ``multiple`` is within reach, or the design's size is random, or a prompt
                has probability 0 and the pruning does not say that it is biased.
        """
        size, seen_P = candidates.seen_P.numel(), candidates.seen_P
        pruned = self.rate > 0 and self.auto is None and bool(seen_P.any())
        if multiple > 1 and pruned and not self.design.fixed_size:
            raise DesignError(
                f"design={self.design.name!r} keeps a random number of prompts, which cannot be a multiple of "
                f"{multiple}. Use design=PIVOTAL."
            )
        total = math.ceil((self._total(candidates) if pruned else size) / multiple) * multiple
        if total > size:
            raise DesignError(
                f"cannot keep a multiple of {multiple} prompts that is at least {total - multiple + 1}: the "
                f"block has {size}. Use a block size that is a multiple of {multiple}."
            )
        if not pruned:
            return Draw.whole(torch.ones(size, dtype=torch.bool))
        prob_P = torch.ones(size, dtype=torch.float64)
        prob_P[seen_P] = self.at_total(candidates, total)._seen_probabilities(candidates)
        # Neighbours exclude each other in a pivotal draw: alike prompts side by side spread the sample over all kinds.
        row_P = torch.from_numpy(np.lexsort((candidates.signal_P.numpy(), seen_P.numpy())))
        return self._select(row_P, prob_P[row_P], candidates.signal_P.double()[row_P], size, rng)

    def at_chosen_rate(self, evidence: Evidence) -> "PromptPruning":
        """As at every level; at a rate that was chosen, expectations are calibrated by the same evidence."""
        if self.auto is None:
            return self
        chosen = self._chosen(self.choice(evidence).rate)
        return replace(chosen, calibration=Calibration.of(evidence)) if chosen.rate and not evidence.exact else chosen

    def _foreseen(self, evidence: Evidence) -> Tensor:
        return evidence.expected_N.sqrt() if evidence.exact else by_others(evidence).sqrt()

    def half(self, evidence: Evidence) -> Tensor:
        """(N,) probabilities that this rule and floor give to units at a rate of one half, by what was expected."""
        return self._probabilities(evidence.expected_N.sqrt(), evidence.expected_cost_N, 0.5)

    def fewest(self, candidates: Candidates) -> float:
        """Smallest expected number of prompts that can be asked of a block: its unseen ones, and the floor's share."""
        if self.rate == 0:
            return float(candidates.seen_P.numel())
        return int((~candidates.seen_P).sum()) + self._seen_sum(candidates, 1 - self.floor)

    def at_total(self, candidates: Candidates, total: int) -> "PromptPruning":
        """The same pruning with the rate at which ``total`` prompts of this block are expected to be rolled out.

        Args:
            candidates: the block.
            total: expected number of prompts, from ``fewest`` to all of them.

        Raises:
            DesignError: if no rate gives that number.
        """
        seen = int(candidates.seen_P.sum())
        wanted = total - (candidates.seen_P.numel() - seen)
        low, high = (0.0, float(seen)), (1 - self.floor, self._seen_sum(candidates, 1 - self.floor))
        for attempt in range(100):
            rate = low[0]
            if high[1] < low[1]:  # a straight line is exact for most rules; every other time halve, to be sure to end
                share = (low[1] - wanted) / (low[1] - high[1]) if attempt % 2 == 0 else 0.5
                rate += (high[0] - low[0]) * min(max(share, 0.0), 1.0)
            kept = self._seen_sum(candidates, rate)
            if abs(kept - wanted) <= WHOLE / 10:
                return replace(self, rate=rate)
            low, high = ((rate, kept), high) if kept > wanted else (low, (rate, kept))
        raise DesignError(
            f"no rate keeps {total} of {candidates.seen_P.numel()} prompts, {seen} of them seen, with "
            f"floor={self.floor:g}: at least {self.fewest(candidates):g} are. Use a lower floor."
        )

    def _total(self, candidates: Candidates) -> int:
        """Expected number of prompts at this rate as an integer: rounded, within reach, at least 1."""
        unseen = int((~candidates.seen_P).sum())
        return max(unseen + round(self._seen_sum(candidates, self.rate)), math.ceil(self.fewest(candidates) - WHOLE), 1)

    def _seen_probabilities(self, candidates: Candidates) -> Tensor:
        seen_P = candidates.seen_P
        signal_R, tokens_R = candidates.signal_P[seen_P].double(), candidates.tokens_P[seen_P].double()
        if self.calibration is not None:
            signal_R = self.calibration(signal_R.square()).sqrt()
        return self._probabilities(signal_R, tokens_R)

    def _seen_sum(self, candidates: Candidates, rate: float) -> float:
        return replace(self, rate=rate)._seen_probabilities(candidates).sum().item()

    def __str__(self) -> str:
        return self.words("expected signal")


def scattered(unit_R: Tensor, size: int, keep_R: Tensor, prob_R: Tensor, weight_R: Tensor) -> Draw:
    """A draw among some units as one over all of them; the others are dropped, with probability and weight 0."""
    keep_N, prob_N, weight_N = torch.zeros(size, dtype=torch.bool), *torch.zeros(2, size, dtype=torch.float64)
    keep_N[unit_R], prob_N[unit_R], weight_N[unit_R] = keep_R, prob_R, weight_R
    return Draw(keep_N=keep_N, prob_N=prob_N, weight_N=weight_N)
