"""What a run reports at every log. The first word of a name says what the figure is over.

=============== ===============================================================================================
``candidates/`` all candidate prompts, estimated from those rolled out with one over their probability as weight
``rollout/``    all completions that were rolled out (TRL's ``reward``, ``completions/*`` are of this kind)
``kept/``       completions trained on, weighted, so that it estimates the mean over all with a gradient
``prune/``      the draws themselves
``rows/``       forward passes of one optimizer step in training, all ranks together: their tokens, and how many a rank
``time/``       seconds of one optimizer step, by phase
=============== ===============================================================================================

Where a generation has several rounds, ``rollout/rounds`` is how many, ``rollout/groups`` the groups rolled out in all
of them, ``rollout/groups_unused`` the share of those that the step is not made of, ``rollout/groups_surplus`` the share
that could have been used but came after enough others. ``candidates/`` and ``rollout/`` figures are about all rounds;
TRL's own are means over rounds. ``prune/explore_easy`` and ``prune/explore_hard`` are GRESO's probabilities to explore.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import IntervalStrategy, TrainerState, TrainingArguments

from dppo.pruning import effective_sample_size, relative_added_variance

PHASES = ("rollout", "reward", "prune", "log_probs", "forward_backward", "optimizer")
RECORD = "record"
"""A phase that is not training, so that no other phase counts it; it is not logged."""


def logs_next_step(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the optimizer step in progress will be logged, so that figures that cost something are worth computing.

    Args:
        args: when to log.
        state: how many steps are done.
    """
    return logs_at(args, state, state.global_step + 1)


def logs_at(args: TrainingArguments, state: TrainerState, step: int) -> bool:
    """Whether an optimizer step will be logged.

    Args:
        args: when to log.
        state: after how many steps to log, once training has begun.
        step: its number, >= 1.
    """
    if args.logging_strategy != IntervalStrategy.STEPS:
        return args.logging_strategy != IntervalStrategy.NO
    return (step == 1 and args.logging_first_step) or step % max(1, state.logging_steps) == 0


def share_done(state: TrainerState) -> float:
    """Share of the run's optimizer steps that are done, in [0, 1]; 0 before training has begun.

    Args:
        state: how many steps are done, and of how many.
    """
    return min(state.global_step / max(state.max_steps, 1), 1.0)


class PhaseClock:
    """Seconds spent in each phase since the last ``flush``; nested phases are not counted twice."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._started: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time of a ``with`` block to ``phase``, less what inner phases took."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[phase] += seconds - self._inner.pop()
            self._inner[-1] += seconds

    def start(self, phase: str) -> None:
        """Begin a phase that ends in another call: ``stop`` adds its time."""
        self._started[phase] = time.perf_counter()

    def stop(self, phase: str) -> None:
        """Add the time since ``start``."""
        self._seconds[phase] += time.perf_counter() - self._started.pop(phase)

    def flush(self) -> dict[str, float]:
        """``time/<phase>`` to seconds, and start again from zero."""
        seconds = {f"time/{phase}": self._seconds[phase] for phase in PHASES}
        self._seconds.clear()
        return seconds


def draw_metrics(weight_N: Tensor, prob_N: Tensor, score_N: Tensor, tokens_N: Tensor) -> dict[str, float]:
    """Figures of one draw over the completions of a share, all ranks together.

    Args:
        weight_N: (N,) weights, 0 where a row was not kept.
        prob_N: (N,) inclusion probabilities; 0 where there is no gradient.
        score_N: (N,) the score, standing in for the gradient's norm in ``added_variance``.
        tokens_N: (N,) tokens that carry loss.
    """
    kept, live = weight_N > 0, prob_N > 0
    return {
        "prune/kept_share": kept.double().mean().item(),
        "prune/live_share": live.double().mean().item(),
        "prune/effective_rows": effective_sample_size(weight_N),
        "prune/largest_weight": weight_N.max().item() if len(weight_N) else 0.0,
        "prune/added_variance": relative_added_variance(prob_N[live], score_N[live]),
        "prune/tokens_trained": tokens_N[kept].sum().item(),
        "prune/tokens_skipped": tokens_N[~kept].sum().item(),
    }


class WeightedMeans:
    """Weighted token means over the micro-batches of a call, summed over ranks in one reduction."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._total: Tensor | None = None

    def add(self, values: dict[str, Tensor], mask_BT: Tensor, weight_B: Tensor) -> None:
        """Add per-token ``values`` (B, T) or per-row (B, 1), weighted by row weight and token mask."""
        weight_BT = mask_BT * weight_B[:, None]
        self._total = weight_BT.sum() + (0.0 if self._total is None else self._total)
        for name, value in values.items():
            term = (value.detach().float() * weight_BT).sum()
            self._sums[name] = self._sums[name] + term if name in self._sums else term

    def stacked(self) -> tuple[list[str], Tensor]:
        """Names and the vector of their sums, with the total weight last, ready for a reduction."""
        names = sorted(self._sums)
        total = torch.zeros(()) if self._total is None else self._total
        return names, torch.stack([*(self._sums[name] for name in names), total])
