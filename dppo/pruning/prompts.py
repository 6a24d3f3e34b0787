"""Pruning of prompts before rollout: one stage, scored by the history."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError
from dppo.moment_samples import MomentSamples
from dppo.pruning.calibration import Calibration, by_others
from dppo.pruning.designs import WHOLE
from dppo.pruning.level import Level
from dppo.types import Candidates, Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPruning(Level):
    """How candidate prompts are dropped before rollout, ranked by the signal in their history."""

    calibration: Calibration | None = None
    """Correction of the signal that history expects; ``auto`` sets it with the rate. None for no correction."""

    def draw(self, candidates: Candidates, rng: np.random.Generator, *, multiple: int = 1, owed: float = 0.0) -> Draw:
        """Choose the prompts to roll out. Prompts without a history always are.

        The expected number is made an integer before the draw, so that a fixed-size design keeps exactly that many.
        With ``auto`` nothing is pruned: draw with ``at_chosen_rate(samples)``, which has chosen.

        Args:
            candidates: the block, from history alone.
            rng: equal on every rank.
            multiple: the number kept is raised to a multiple of this, >= 1, for equal shares per rank.
            owed: prompts to expect beside those of the rate, because earlier draws were rounded; may be below 0.

        Raises:
            DesignError: no multiple of ``multiple`` is within reach, or the design's size is random, or a prompt has
                probability 0 and the pruning does not say that it is biased.
        """
        size, seen_P = candidates.seen_P.numel(), candidates.seen_P
        pruned = self._prunes(candidates)
        if multiple > 1 and pruned and not self.design.fixed_size:
            random = f"design={self.design.name!r} keeps a random number of prompts, not a multiple of {multiple}"
            raise DesignError(f"{random}. Use design=PIVOTAL.")
        total = math.ceil((self._total(candidates, owed) if pruned else size) / multiple) * multiple
        if total > size:
            least = f"cannot keep a multiple of {multiple} prompts that is at least {total - multiple + 1}"
            raise DesignError(f"{least}: the block has {size}. Use a block size that is a multiple of {multiple}.")
        if not pruned:
            return Draw.whole(torch.ones(size, dtype=torch.bool))
        prob_P = torch.ones(size, dtype=torch.float64)
        prob_P[seen_P] = self.at_total(candidates, total)._seen_probabilities(candidates)
        # Neighbours exclude each other in a pivotal draw: alike prompts side by side spread the sample over all kinds.
        row_P = torch.from_numpy(np.lexsort((candidates.signal_P.numpy(), seen_P.numpy())))
        return self._select(row_P, prob_P[row_P], candidates.signal_P.double()[row_P], size, rng)

    def at_chosen_rate(self, samples: MomentSamples) -> "PromptPruning":
        """As for every stage. At a chosen rate, expectations are calibrated by the same samples."""
        if self.auto is None:
            return self
        chosen = self._chosen(self.choice(samples).rate)
        return replace(chosen, calibration=Calibration.of(samples)) if chosen.rate and not samples.exact else chosen

    def _foreseen(self, samples: MomentSamples) -> Tensor:
        others = len(samples) > 1 and not samples.exact
        return (by_others(samples) if others else samples.expected_N).sqrt()

    def half(self, samples: MomentSamples) -> Tensor:
        """(N,) probabilities of the sampled units at a rate of one half, by their expected signal."""
        return self._chosen(0.5)._probabilities(samples.expected_N.sqrt(), samples.expected_cost_N)

    def fewest(self, candidates: Candidates) -> float:
        """Smallest expected number of prompts of a block: its unseen ones, and the floor's share of the others."""
        if self.rate == 0:
            return float(candidates.seen_P.numel())
        return _unseen(candidates) + self._seen_sum(candidates, 1 - self.floor)

    def at_total(self, candidates: Candidates, total: int) -> "PromptPruning":
        """The same pruning with the rate at which ``total`` prompts of this block are expected to be rolled out.

        Raises:
            DesignError: no rate gives that number, because it is below ``fewest``.
        """
        seen = int(candidates.seen_P.sum())
        wanted = total - _unseen(candidates)
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
        seen_of = f"{total} of {candidates.seen_P.numel()} prompts, {seen} of them seen, with floor={self.floor:g}"
        raise DesignError(f"no rate keeps {seen_of}: at least {self.fewest(candidates):g} are. Use a lower floor.")

    def expected(self, candidates: Candidates) -> float:
        """Expected number of prompts that are rolled out of a block, before it is made an integer."""
        if not self._prunes(candidates):
            return float(candidates.seen_P.numel())
        return _unseen(candidates) + self._seen_sum(candidates, self.rate)

    def _prunes(self, candidates: Candidates) -> bool:
        return self.rate > 0 and self.auto is None and bool(candidates.seen_P.any())

    def _total(self, candidates: Candidates, owed: float) -> int:
        """Expected number of prompts at this rate as an integer: rounded, within reach, at least 1."""
        seen = min(round(self._seen_sum(candidates, self.rate) + owed), int(candidates.seen_P.sum()))
        return max(_unseen(candidates) + seen, math.ceil(self.fewest(candidates) - WHOLE), 1)

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


def _unseen(candidates: Candidates) -> int:
    """Prompts without a history, which are always rolled out."""
    return int((~candidates.seen_P).sum())
