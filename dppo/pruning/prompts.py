"""Prompts before rollout: a stage of pruning scored by the history, the stream of candidates, and sizes of groups."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import DataError, DesignError
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import Calibration, by_others
from dppo.pruning.designs import WHOLE
from dppo.pruning.history import PromptHistory, SignalPrior
from dppo.pruning.level import Level
from dppo.rng import Purpose, generator
from dppo.typed import check_fields
from dppo.types import Candidates, Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPruning(Level):
    """How candidate prompts are dropped before rollout, ranked by the signal in their history."""

    calibration: Calibration | None = None
    """Correction of the signal that history expects; ``auto`` sets it with the rate. None for no correction."""

    def draw(self, candidates: Candidates, rng: np.random.Generator, *, multiple: int = 1, owed: float = 0.0) -> Draw:
        """Choose the prompts to roll out. Prompts without a history always are.

        The expected number is made an integer before the draw, so that a fixed-size design keeps exactly that many, and
        raised to a ``multiple`` for equal shares per rank. ``owed`` are prompts to expect beside those of the rate,
        because earlier draws were rounded; may be below 0. With ``auto`` nothing is pruned before ``at_chosen_rate``.
        """
        size, seen_P = candidates.seen_P.numel(), candidates.seen_P
        pruned, total = self._prunes(candidates), size
        if pruned:
            if multiple > 1 and not self.design.fixed_size:
                sized = f"design={self.design.name!r} keeps a random number of prompts, not a multiple of {multiple}"
                raise DesignError(f"{sized}. Use design=PIVOTAL.")
            seen = min(round(self._seen_sum(candidates, self.rate) + owed), int(seen_P.sum()))
            total = max(_unseen(candidates) + seen, math.ceil(self.expected(candidates, 1 - self.floor) - WHOLE), 1)
        total = math.ceil(total / multiple) * multiple
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

    def at_total(self, candidates: Candidates, total: int) -> "PromptPruning":
        """The same pruning at the rate that keeps ``total`` prompts of this block on average."""
        seen, wanted, most = int(candidates.seen_P.sum()), total - _unseen(candidates), 1 - self.floor
        low, high = (0.0, float(seen)), (most, self._seen_sum(candidates, most))
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
        fewest = self.expected(candidates, most)
        raise DesignError(f"no rate keeps {seen_of}: at least {fewest:g} are. Use a lower floor.")

    def expected(self, candidates: Candidates, rate: float | None = None) -> float:
        """Expected number of prompts to roll out of a block; ``rate`` replaces its own, unless nothing is pruned."""
        if not self._prunes(candidates):
            return float(len(candidates.seen_P))
        return _unseen(candidates) + self._seen_sum(candidates, self.rate if rate is None else rate)

    def _prunes(self, candidates: Candidates) -> bool:
        return self.rate > 0 and self.auto is None and bool(candidates.seen_P.any())

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


class PromptStream:
    """Rows of ``size`` >= 1 prompts, in an order by ``seed`` >= 0 and epoch; without ``shuffle`` it is 0, 1, 2, ..."""

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise DataError(f"the dataset has {size} prompts. Give one with at least 1.")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.epoch, self.offset = 0, 0

    @property
    def epochs(self) -> float:
        """Epochs taken so far, fractions included."""
        return self.epoch + self.offset / self.size

    def take(self, count: int) -> Tensor:
        """Return the next ``count`` rows, (count,) int64, and move past them. They may span several epochs."""
        rows = self.peek(count)
        epochs, self.offset = divmod(self.offset + count, self.size)
        self.epoch += epochs
        return rows

    def peek(self, count: int) -> Tensor:
        """The next ``count`` >= 0 rows, (count,) int64, without moving."""
        epoch, start, parts = self.epoch, self.offset, []
        while count > 0:
            order = _order(self.size, self.seed, epoch) if self.shuffle else np.arange(self.size)
            parts.append(order[start : start + count])
            count -= len(parts[-1])
            epoch, start = epoch + 1, 0
        return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts]))

    def state_dict(self) -> dict[str, int]:
        """Place of the stream: ``epoch`` and ``offset`` within it."""
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to the place of ``state_dict``, or to the next epoch if the dataset has become shorter than its offset."""
        self.epoch, self.offset = state["epoch"], state["offset"]
        if self.offset >= self.size:
            stood = f"the run stood at prompt {self.offset} of an epoch, and the dataset has {self.size} now"
            warnings.warn(f"{stood}: the next epoch begins.", stacklevel=2)
            self.epoch, self.offset = self.epoch + 1, 0


@lru_cache(maxsize=4)  # a block may span epochs, and a run has streams for training and for a look ahead
def _order(size: int, seed: int, epoch: int) -> np.ndarray:
    return generator(seed, Purpose.PROMPT_ORDER, epoch).permutation(size)


def fill_block(
    stream: PromptStream,
    history: PromptHistory,
    pruning: PromptPruning,
    prompts: int,
    step: int,
    prior: SignalPrior | None = None,
    *,
    part: int = 0,
    parts: int = 1,
) -> tuple[Candidates, PromptPruning]:
    """Take the next rows as candidates, and the pruning that keeps ``prompts`` of them on average.

    The block, number ``part`` of ``parts``, is the longest whose smallest expected size is within ``prompts``, at most
    ``prompts / (1 - rate)`` rows and one epoch. It is fixed before any draw: taking until enough are kept is biased.
    """
    whole, prompts = min(round(prompts / (1 - pruning.rate)), stream.size), prompts // parts
    longest = whole * (part + 1) // parts - whole * part // parts
    ahead = stream.peek(longest)
    fits, over = prompts, longest + 1
    while over - fits > 1:
        length = (fits + over) // 2
        fewest = pruning.expected(history.candidates(ahead[:length], step, prior), 1 - pruning.floor)
        fits, over = (length, over) if fewest <= prompts + WHOLE else (fits, length)
    candidates = history.candidates(stream.take(fits), step, prior)
    return candidates, pruning.at_total(candidates, prompts)


TINY = 1e-9
"""Smallest number wanted, as a share of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Completions in proportion to ``sqrt(V / c)`` of each prompt: V the variance of its reward, c its tokens.

    Sizes are fixed before the rollout. With a baseline that is exact for every size, one over the size is the only
    weight: each prompt counts alike.

    Source: Neyman (1934), optimal allocation; VIP, arXiv:2602.01601, for completions of prompts.
    """

    evenness: float = 0.3
    """Share of the completions that is spread evenly, in [0, 1], so a prompt that becomes learnable is noticed."""
    most: int = 16
    """Most completions of one prompt, >= 1; raised to the mean if that is larger."""

    def __post_init__(self) -> None:
        check_fields(self, "GroupSizes(evenness=0.3, most=16)", evenness="[0, 1]", most="[1, inf)")

    def __call__(
        self, expected: Expected, tokens_Q: Tensor, generations: int, weight_F: Tensor | None = None
    ) -> Tensor:
        """(Q,) int64 completions of each prompt, >= 1, with the sum ``generations * Q``.

        ``tokens_Q`` (Q,) > 0 are the expected tokens of a completion, ``weight_F`` (F,) weights of reward functions.
        """
        size_Q = (expected.total_variance_Q(weight_F) / tokens_Q.double()).sqrt()
        total, most = generations * len(size_Q), max(self.most, generations)
        if not bool((size_Q > 0).any()):
            return torch.full((len(size_Q),), generations)
        share_Q = self.evenness / len(size_Q) + (1 - self.evenness) * size_Q / size_Q.sum()
        return whole_numbers(share_Q * total, total, least=1, most=most)


def whole_numbers(wanted_Q: Tensor, total: int, *, least: int, most: int) -> Tensor:
    """(Q,) int64 in [least, most] that sum to ``total``, in proportion to ``wanted_Q``: largest remainders round up."""
    wanted_Q = (wanted_Q / wanted_Q.max()).clamp_min(TINY)
    low, high = 0.0, max(most, 1) / TINY
    for _ in range(100):  # the factor at which the limited numbers have the right sum
        factor = (low + high) / 2
        below = float((wanted_Q * factor).clamp(least, most).sum()) < total
        low, high = (factor, high) if below else (low, factor)
    real_Q = (wanted_Q * high).clamp(least, most)
    whole_Q = (real_Q + 1e-9).floor().long()
    rest = total - int(whole_Q.sum())
    open_Q = torch.where(whole_Q < most, real_Q - whole_Q, -math.inf)
    whole_Q[torch.sort(open_Q, descending=True, stable=True).indices[:rest]] += 1
    return whole_Q
