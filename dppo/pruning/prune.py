"""One level of pruning as a value: what to score by, which probabilities, how to draw, how to weight."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, raise_problems
from dppo.pruning.designs import PIVOTAL, WHOLE, Design
from dppo.pruning.probabilities import ROUNDING, Rule, proportional
from dppo.pruning.rules import BIASED_RULES
from dppo.pruning.schedules import Schedule, constant
from dppo.pruning.scopes import Scope, live_rows
from dppo.pruning.scores import Score, absolute_advantage
from dppo.pruning.weights import (
    BIASED_RESCALINGS,
    BIASED_WEIGHTINGS,
    Rescaling,
    Weighting,
    fixed_denominator,
    inverse_probability,
)
from dppo.types import Candidates, Completions, Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """How rows are dropped at one level, prompts or completions. The defaults drop nothing.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    rate: float = 0.0
    """Share of the rows that could be dropped to drop on average, in [0, 1); 0 turns pruning off."""
    score: Score = absolute_advantage
    """What completions are ranked by. Prompts are ranked by the signal in their history."""
    rule: Rule = proportional
    """From scores to inclusion probabilities."""
    design: Design = PIVOTAL
    """From probabilities to a selection."""
    weighting: Weighting = inverse_probability
    """From a selection to weights."""
    floor: float = 0.1
    """Lowest probability of a row, in (0, 1 - rate]; no weight of this level exceeds ``1 / floor``."""
    budget: Literal["rows", "tokens"] = "rows"
    """What ``rate`` is a share of: with ``tokens``, rows that cost more are kept less often."""
    scope: Scope = live_rows
    """Which completions the rule looks at, in which order, and which of them compete. Prompts all compete."""
    rescaling: Rescaling = fixed_denominator
    """From what was kept to what multiplies the weights of completions, for means over survivors."""
    schedule: Schedule = constant
    """From the share of training done to what multiplies ``rate``; ``at`` applies it."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.rate < 1:
            problems.append(f"rate={self.rate:g} must be in [0, 1). To drop half, write rate=0.5.")
        else:
            highest = 1.0 if self.rule in BIASED_RULES else 1 - self.rate
            if not 0 < self.floor <= highest + ROUNDING:
                problems.append(
                    f"floor={self.floor:g} must be in (0, {highest:g}], the share that rate={self.rate:g} keeps. "
                    f"Try floor={(1 - self.rate) / 2:g}."
                )
        if self.budget not in ("rows", "tokens"):
            problems.append(f"budget={self.budget!r} must be 'rows' or 'tokens'. Try budget='rows'.")
        raise_problems("Pruning", problems)

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of the full batch, one clause per part; empty if it is."""
        if self.rate == 0:
            return ""
        reasons = (
            BIASED_RULES.get(self.rule, ""),
            self.design.reason,
            BIASED_WEIGHTINGS.get(self.weighting, ""),
            BIASED_RESCALINGS.get(self.rescaling, ""),
        )
        return "; ".join(filter(None, reasons))

    def at(self, done: float) -> "Pruning":
        """This pruning with the rate that its schedule gives at a point of the run.

        Args:
            done: share of training done, in [0, 1].
        """
        if self.schedule is constant:
            return self
        return replace(self, rate=self.rate * self.schedule(done), schedule=constant)

    def draw_completions(self, completions: Completions, rng: np.random.Generator) -> Draw:
        """Choose the completions to train on.

        Args:
            completions: all completions of the step. Those without a gradient are dropped, which is exact, unless the
                scope counts them.
            rng: source of randomness; seed it by run, step and purpose so that every rank draws the same.

        Returns:
            Keep, probability and weight per completion, in the order given. Without live rows nothing is kept.

        Raises:
            ConfigError: if the score needs log-probabilities that are not there.
            DesignError: if a live row has probability 0 and the pruning does not say that it is biased.
        """
        live = completions.live_N
        if self.rate == 0 or not live.any():
            return _draw(live.clone(), live.double(), live.double())
        row, group = self.scope(completions)
        score, tokens = self.score(completions)[row].double(), completions.tokens_N[row].double()
        cost = tokens.clamp_min(1) if self.budget == "tokens" else None
        prob = self.rule(score, rate=self.rate, floor=self.floor, cost_N=cost, group_N=group)
        draw = self._select(row, prob, score, live.numel(), rng)
        factor_N = torch.zeros_like(draw.weight_N)
        factor_N[row] = self.rescaling(draw.keep_N[row], tokens, group)
        return replace(draw, weight_N=draw.weight_N * factor_N)

    def draw_prompts(self, candidates: Candidates, rng: np.random.Generator, *, rows_multiple: int = 1) -> Draw:
        """Choose the prompts to roll out. Prompts without a history always are.

        The expected number is made an integer before the draw, at least 1 and a multiple of ``rows_multiple``, so
        that a fixed-size design keeps exactly that many.

        Args:
            candidates: the block, from history alone.
            rng: source of randomness; seed it by run, step and purpose so that every rank draws the same.
            rows_multiple: the number kept is raised to a multiple of this, >= 1, for equal shares per rank.

        Returns:
            Keep, probability and weight per candidate, in the order given.

        Raises:
            DesignError: if no multiple of ``rows_multiple`` is within reach, or the design's size is random, or a
                prompt has probability 0 and the pruning does not say that it is biased.
        """
        size, seen = candidates.seen_P.numel(), candidates.seen_P
        pruned = self.rate > 0 and bool(seen.any())
        if rows_multiple > 1 and pruned and not self.design.fixed_size:
            raise DesignError(
                f"design={self.design.name!r} keeps a random number of prompts, which cannot be a multiple of "
                f"{rows_multiple}. Use design=PIVOTAL."
            )
        total = self._prompt_total(candidates) if pruned else size
        total = math.ceil(total / rows_multiple) * rows_multiple
        if total > size:
            raise DesignError(
                f"cannot keep a multiple of {rows_multiple} prompts that is at least {total - rows_multiple + 1}: the "
                f"block has {size}. Use a block size that is a multiple of {rows_multiple}."
            )
        prob = torch.ones(size, dtype=torch.float64)
        if pruned:
            prob[seen] = self.at_prompt_total(candidates, total)._seen_probabilities(candidates)
        order = np.lexsort((candidates.signal_P.numpy(), seen.numpy()))
        row = torch.from_numpy(order)
        return self._select(row, prob[row], candidates.signal_P.double()[row], size, rng)

    def fewest_prompts(self, candidates: Candidates) -> float:
        """Smallest expected number of prompts that can be asked of a block: its unseen ones, and the floor's share.

        Args:
            candidates: the block.
        """
        if self.rate == 0:
            return float(candidates.seen_P.numel())
        return int((~candidates.seen_P).sum()) + self._seen_sum(candidates, 1 - self.floor)

    def at_prompt_total(self, candidates: Candidates, total: int) -> "Pruning":
        """The same pruning with the rate at which ``total`` prompts of this block are expected to be rolled out.

        Args:
            candidates: the block.
            total: expected number of prompts, from ``fewest_prompts`` to all of them.

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
            f"floor={self.floor:g}: at least {self.fewest_prompts(candidates):g} are. Use a lower floor."
        )

    def _prompt_total(self, candidates: Candidates) -> int:
        """Expected number of prompts at this rate as an integer: rounded, within reach, at least 1."""
        unseen = int((~candidates.seen_P).sum())
        lowest = math.ceil(self.fewest_prompts(candidates) - WHOLE)
        return max(unseen + round(self._seen_sum(candidates, self.rate)), lowest, 1)

    def _seen_probabilities(self, candidates: Candidates) -> Tensor:
        seen = candidates.seen_P
        cost = candidates.tokens_P[seen].double() if self.budget == "tokens" else None
        return self.rule(candidates.signal_P[seen].double(), rate=self.rate, floor=self.floor, cost_N=cost)

    def _seen_sum(self, candidates: Candidates, rate: float) -> float:
        return replace(self, rate=rate)._seen_probabilities(candidates).sum().item()

    def _select(self, row: Tensor, prob: Tensor, score: Tensor, size: int, rng: np.random.Generator) -> Draw:
        """Draw among ``row`` (in the design's order) and put the result back in the order of the step."""
        if not self.bias and bool((prob <= 0).any()):
            raise DesignError(
                f"{int((prob <= 0).sum())} rows with a gradient have probability 0, so no weight can make up for "
                "them. Use rule=proportional with floor > 0, or list the rule in BIASED_RULES with its reason."
            )
        keep = self.design.draw(prob, score, rng)
        keep_N, prob_N, weight_N = torch.zeros(size, dtype=torch.bool), *torch.zeros(2, size, dtype=torch.float64)
        keep_N[row], prob_N[row], weight_N[row] = keep, prob, self.weighting(keep, prob)
        return _draw(keep_N, prob_N, weight_N)


def _draw(keep_N: Tensor, prob_N: Tensor, weight_N: Tensor) -> Draw:
    return Draw(keep_N=keep_N, prob_N=prob_N, weight_N=weight_N)
