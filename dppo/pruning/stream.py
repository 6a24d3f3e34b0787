"""Candidate prompts in their order: an endless stream of epochs, and blocks cut from it before any draw."""

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DataError
from dppo.pruning.designs import WHOLE
from dppo.pruning.history import PromptHistory, SignalPrior
from dppo.pruning.prompts import PromptPruning
from dppo.rng import Purpose, generator


class PromptStream:
    """Rows of a dataset of ``size`` >= 1 prompts, epoch after epoch.

    The order of an epoch is a function of ``seed`` (>= 0) and its number; without ``shuffle`` it is 0, 1, 2, ...
    """

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise DataError(f"the dataset has {size} prompts. Give one with at least 1.")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self.epoch, self.offset = 0, 0
        self._orders: dict[int, np.ndarray] = {}

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
            parts.append(self._order(epoch)[start : start + count])
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

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            for old in [old for old in self._orders if old < self.epoch]:
                del self._orders[old]
            rng = generator(self.seed, Purpose.PROMPT_ORDER, epoch)
            self._orders[epoch] = rng.permutation(self.size) if self.shuffle else np.arange(self.size)
        return self._orders[epoch]


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
) -> tuple[Tensor, PromptPruning]:
    """Take the next rows, (M,) int64, and the pruning that keeps ``prompts`` of them on average.

    The block is the longest one whose smallest expected size is within ``prompts``, at most ``prompts / (1 - rate)``
    rows and one epoch. History fixes it before any draw, because taking rows until enough are kept is biased (inverse
    sampling). ``part`` is the number of the block among ``parts``.
    """
    whole, prompts = min(round(prompts / (1 - pruning.rate)), stream.size), prompts // parts
    longest = whole * (part + 1) // parts - whole * part // parts
    ahead = stream.peek(longest)
    fits, over = prompts, longest + 1
    while over - fits > 1:
        length = (fits + over) // 2
        fewest = pruning.fewest(history.candidates(ahead[:length], step, prior))
        fits, over = (length, over) if fewest <= prompts + WHOLE else (fits, length)
    row_P = stream.take(fits)
    return row_P, pruning.at_total(history.candidates(row_P, step, prior), prompts)
