"""Rollouts of a step, and their view for completion pruning. No random numbers are used here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import DataError, ShapeError
from dppo.groups import each_group
from dppo.methods import Method
from dppo.pruning import SampledTokens
from dppo.typed import check_fields
from dppo.types import Completions, Rewards, check_lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """Rollouts of all ranks for a step: whole groups, completion after completion.

    Raises:
        ShapeError: a tensor is not of one entry per completion.
        DataError: a number of tokens is negative.
    """

    rewards: Rewards
    tokens_N: Tensor
    """(N,) tokens of each completion that carry loss, >= 0."""
    attended_N: Tensor | None = None
    """(N,) tokens of each prompt and completion together; None without a router loss."""
    uncertainty_N: Tensor | None = None
    """(N,) ``sqrt(sum_t (1 - p_t)^2)``; None without the sampler's log-probabilities."""
    process_N: Tensor | None = None
    """(N,) process that rolled each completion out; None for a single one."""
    sampled: SampledTokens | None = None
    """Log-probabilities of each token, for token pruning; None without it or without log-probabilities."""

    def __post_init__(self) -> None:
        check_fields(self, "RolledOut(rewards=Rewards.of_groups(reward_PG), tokens_N=tokens_N)")
        check_lengths(self, len(self.rewards))
        if self.sampled is not None and len(self.sampled.mask_NT) != len(self.rewards):
            raise ShapeError(f"sampled has {len(self.sampled.mask_NT)} completions and rewards {len(self.rewards)}.")
        if not (self.tokens_N >= 0).all():
            raise DataError(f"tokens_N must be >= 0; the smallest is {self.tokens_N.min()}. Pass mask_NT.sum(1).")


def completions_of(
    method: Method,
    rolled_out: RolledOut,
    context: StepContext,
    live: Callable[[Tensor], Tensor] | None = None,
    weight_N: Tensor | None = None,
) -> Completions:
    """Completions as pruning sees them: advantages of whole groups, and which completions have a gradient.

    ``live`` is that of ``plan_step``. ``weight_N`` (N,) is a factor of each completion's loss: 0 for groups that the
    step does not train on, None for 1.
    """
    rewards, tokens_N = rolled_out.rewards, rolled_out.tokens_N
    advantage_N, used_N = method.advantages(rewards, context), torch.ones(len(rewards), dtype=torch.bool)
    if weight_N is not None and not (used_N := weight_N > 0).all():
        # Unused groups have advantages for the history, but must not count in a standard deviation over the batch.
        advantage_N = torch.where(used_N, method.advantages(rewards.only(used_N), context), advantage_N)
    return Completions(
        advantage_N=advantage_N,
        tokens_N=tokens_N,
        group_N=rewards.group_N,
        live_N=(live or method.live)(advantage_N) & (tokens_N > 0) & used_N,
        averaged_N=tokens_N.clamp_min(1) if method.normaliser.per_sequence else None,
        uncertainty_N=rolled_out.uncertainty_N,
        process_N=rolled_out.process_N,
        weight_N=weight_N,
        beta=method.beta,
        other=method.other_terms(context),
    )


def signals(method: Method, rolled_out: RolledOut, context: StepContext) -> Tensor:
    """(Q,) float64 estimate of the gradient norm of each group: the root of the sum of its squared scores."""
    completions = completions_of(method, rolled_out, context)
    return signals_of(scores(method, completions), completions.group_N)


def scores(method: Method, completions: Completions) -> Tensor:
    """(N,) float64 estimate of each completion's gradient norm, any unit; 0 without a gradient."""
    # ``method.live``, not the caller's ``live``: a completion that is forwarded for its metrics still has no signal.
    has_gradient_N = method.live(completions.advantage_N) & (completions.tokens_N > 0)
    return method.score(completions).double() * has_gradient_N


def signals_of(score_N: Tensor, group_N: Tensor) -> Tensor:
    """(Q,) root of the sum of squared scores of each group."""
    return each_group(lambda score_QG: score_QG.square().sum(1).sqrt(), group_N, score_N)
