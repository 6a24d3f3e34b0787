"""The draws of a generation window: dealing completions to optimizer steps, then one draw per share and pass."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig

from dppo.methods import Method
from dppo.rng import Purpose, generator
from dppo.types import Completions


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the calls of a generation window fall into passes over its completions and shares of a pass."""

    passes: int
    """TRL's ``num_iterations``."""
    shares: int
    """Optimizer steps per pass, at least 1."""
    calls: int
    """Forward calls that make up one share: what TRL calls micro-steps."""

    @classmethod
    def of(cls, *, steps_per_generation: int, accumulation: int, iterations: int) -> "Schedule":
        """The schedule of TRL's ``steps_per_generation``, ``gradient_accumulation_steps`` and ``num_iterations``."""
        shares = max(1, steps_per_generation // accumulation)
        return cls(passes=iterations, shares=shares, calls=steps_per_generation // shares)

    @classmethod
    def of_arguments(cls, args: GRPOConfig) -> "Schedule":
        """The schedule that a run's arguments describe."""
        return cls.of(
            steps_per_generation=args.steps_per_generation or 1,
            accumulation=args.gradient_accumulation_steps,
            iterations=args.num_iterations,
        )

    @property
    def length(self) -> int:
        """Calls of the whole window: TRL generates again after as many."""
        return self.passes * self.shares * self.calls

    def locate(self, phase: int) -> tuple[int, int]:
        """``(draw, call)`` of the window's call number ``phase``: which draw it trains on, which part of it."""
        return divmod(phase, self.calls)


def deal(per_rank: int, processes: int, shares: int, seed: int, window: int) -> Tensor:
    """(N,) the share each completion is trained in, near equal in size on every rank, each equally likely.

    Args:
        per_rank: completions on one rank; N is ``per_rank * processes``, rank after rank.
        processes: ranks.
        shares: optimizer steps of a pass.
        seed: the run's seed.
        window: the generation's number.
    """
    parts = []
    for rank in range(processes):
        rng = generator(seed, window, Purpose.DEAL, rank)
        parts.append(rng.permutation((np.arange(per_rank) + rng.integers(shares)) % shares))
    return torch.from_numpy(np.concatenate(parts))


def draw_shares(
    method: Method,
    completions: Completions,
    prompt_weight_N: Tensor,
    share_N: Tensor,
    schedule: Schedule,
    key: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Weights and probabilities of every completion in every draw of a window, drawn anew for each pass.

    Args:
        method: gives the completion-level pruning.
        completions: all N completions of the window, all ranks.
        prompt_weight_N: (N,) weight of each completion's prompt; at 0 a completion takes no part in any draw.
        share_N: (N,) from ``deal``.
        schedule: passes and shares.
        key: the run's seed and the window's number, from which every draw is reproduced.

    Returns:
        (passes * shares, N) float64 weights, 0 where not kept, and as many inclusion probabilities, 0 in other shares.
    """
    weight_SN, prob_SN = torch.zeros(2, schedule.passes * schedule.shares, len(share_N), dtype=torch.float64)
    for index in range(len(weight_SN)):
        rows = ((share_N == index % schedule.shares) & (prompt_weight_N > 0)).nonzero().squeeze(1)
        part = take(completions, rows)
        draw = method.completions.draw_completions(part, generator(*key, Purpose.COMPLETION_DRAW, index))
        weight_SN[index, rows], prob_SN[index, rows] = draw.weight_N * prompt_weight_N[rows], draw.prob_N
    return weight_SN, prob_SN


def take(completions: Completions, rows: Tensor) -> Completions:
    """The given rows of a record of completions."""
    confidence, process = completions.confidence_N, completions.process_N
    return Completions(
        advantage_N=completions.advantage_N[rows],
        tokens_N=completions.tokens_N[rows],
        group_N=completions.group_N[rows],
        live_N=completions.live_N[rows],
        confidence_N=None if confidence is None else confidence[rows],
        process_N=None if process is None else process[rows],
    )
