"""Pruning of completions: one stage with a score."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np
from torch import Tensor

from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import COMPLETION_AUTO, Auto
from dppo.pruning.designs import neighbours
from dppo.pruning.level import Level
from dppo.pruning.scores import Score, absolute_advantage
from dppo.types import Completions, Draw


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
    """Pruning of completions. The defaults drop only those without a gradient.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    usual_auto: ClassVar[Auto] = COMPLETION_AUTO

    score: Score = absolute_advantage
    """Score of each completion."""

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
            return level.at_chosen_rate(self.samples(completions)).draw(completions, rng)
        unit_R, score_R, tokens_R = self._scored(completions)
        return self._select(unit_R, level._probabilities(score_R, tokens_R), score_R, live_N.numel(), rng)

    def informed(self, completions: Completions) -> "Pruning":
        """This pruning, with one floor for all if the scores leave out a term of unknown size."""
        return self if completions.other is not None else replace(self, least=None)

    def samples(self, completions: Completions) -> MomentSamples:
        """Squared scores and tokens of the completions with a gradient, those of a prompt to be resampled together.

        What is paid anyway are the tokens of all completions: their rollout comes before the draw.
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
        name = getattr(self.score, "__name__", type(self.score).__name__)
        return self.words(name.replace("_", " "))
