"""What a trainer measures of itself: seconds by phase, and weighted sums over what it trains on."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import IntervalStrategy, TrainerState, TrainingArguments

PHASES = ("rollout", "reward", "prune", "log_probs", "forward_backward", "optimizer")
RECORD = "record"
"""A phase that is not training, so that no other phase counts it; it is not logged."""


def logs_next_step(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the optimizer step in progress will be logged, so that costly figures are worth computing."""
    return logs_at(args, state, state.global_step + 1)


def logs_at(args: TrainingArguments, state: TrainerState, step: int) -> bool:
    """Whether an optimizer step will be logged."""
    if args.logging_strategy != IntervalStrategy.STEPS:
        return args.logging_strategy != IntervalStrategy.NO
    return (step == 1 and args.logging_first_step) or step % max(1, state.logging_steps) == 0


def share_done(state: TrainerState) -> float:
    """Share of the run's optimizer steps that are done, in [0, 1]; 0 before training has begun."""
    return min(state.global_step / max(state.max_steps, 1), 1.0)


def wall() -> float:
    """Seconds of the wall's clock."""
    return time.perf_counter()


class PhaseClock:
    """Seconds spent in each phase since the last ``flush``; nested phases are not counted twice.

    Args:
        now: the clock, in seconds: of the wall, or ``time.process_time`` where other work runs on the machine.
    """

    def __init__(self, now: Callable[[], float] = wall) -> None:
        self.now = now
        self._seconds: dict[str, float] = defaultdict(float)
        self._started: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of a ``with`` block to ``phase``, less what inner phases took."""
        start = self.now()
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = self.now() - start
            self._seconds[phase] += seconds - self._inner.pop()
            self._inner[-1] += seconds

    def start(self, phase: str) -> None:
        """Begin a phase that ends in another call: ``stop`` adds its time."""
        self._started[phase] = self.now()

    def stop(self, phase: str) -> None:
        """Add the time since ``start``."""
        self._seconds[phase] += self.now() - self._started.pop(phase)

    def flush(self) -> dict[str, float]:
        """``time/<phase>`` to seconds, and start again from zero."""
        seconds = {f"time/{phase}": self._seconds[phase] for phase in PHASES}
        self._seconds.clear()
        return seconds


class WeightedSums:
    """Sums of figures over the completions of an optimizer step, weighted by completion, for all ranks at once."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor, mask_BT: Tensor, weight_B: Tensor) -> None:
        """Add values of tokens, (B, T), over those that carry loss; or of completions, (B, 1).

        Args:
            name: of the sum.
            value: (B, T) or (B, 1).
            mask_BT: (B, T) tokens that carry loss.
            weight_B: (B,) weights of completions.
        """
        value = value.detach().float()
        rows_B = value[:, 0] if value.shape[1] == 1 else (value * mask_BT).sum(1)
        self._sums[name] = self._sums.get(name, value.new_zeros(())) + (rows_B * weight_B).sum()

    def reduced(self, accelerator: Any) -> dict[str, float]:
        """The sums over all ranks, by name. All ranks call together, with the same names."""
        names = sorted(self._sums)
        if not names:
            return {}
        sums = accelerator.reduce(torch.stack([self._sums[name] for name in names]), reduction="sum")
        return dict(zip(names, sums.tolist(), strict=True))
