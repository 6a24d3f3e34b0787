"""What was rolled out for a step, and what completion pruning may look at: no random numbers come in here."""

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
    """What all ranks rolled out for a step: whole groups, completion after completion.

    Raises:
        ShapeError: a tensor is not of one entry per completion.
        DataError: a number of tokens is negative.
    """

    rewards: Rewards
    tokens_N: Tensor
    """(N,) tokens of each completion that carry loss, >= 0."""
    attended_N: Tensor | None = None
    """(N,) tokens of each prompt and completion together; None where no router loss is wanted."""
    uncertainty_N: Tensor | None = None
    """(N,) ``sqrt(sum_t (1 - p_t)^2)``; None where the sampler's log-probabilities are not known."""
    process_N: Tensor | None = None
    """(N,) the process that rolled each completion out; None for a single one."""
    sampled: SampledTokens | None = None
    """The tokens themselves, by which a part of them is drawn; None where all are trained on, or nothing is known."""

    def __post_init__(self) -> None:
        check_fields(self, "RolledOut(rewards=Rewards.of_groups(reward_PG), tokens_N=tokens_N)")
        check_lengths(self, len(self.rewards))
        if self.sampled is not None and len(self.sampled.mask_NT) != len(self.rewards):
            raise ShapeError(f"{len(self.sampled.mask_NT)} completions sampled and {len(self.rewards)} rewarded.")
        if not (self.tokens_N >= 0).all():
            raise DataError(f"tokens_N must be >= 0, and its smallest is {self.tokens_N.min()}. Pass mask_NT.sum(1).")


def completions_of(
    method: Method,
    rolled_out: RolledOut,
    context: StepContext,
    live: Callable[[Tensor], Tensor] | None = None,
    weight_N: Tensor | None = None,
) -> Completions:
    """What completion pruning may look at: advantages of whole groups, and which completions have a gradient.

    ``live`` is that of ``plan_step``. What already multiplies each completion is ``weight_N`` (N,), 0 for groups that
    the step is not made of, None for 1.
    """
    rewards, tokens_N = rolled_out.rewards, rolled_out.tokens_N
    advantage_N, used_N = method.advantages(rewards, context), torch.ones(len(rewards), dtype=torch.bool)
    if weight_N is not None and not (used_N := weight_N > 0).all():
        # What the history learns of a group that the step does without; a deviation over the batch must not see it.
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
    """(Q,) float64 guess of the norm of each group's gradient: the root of the sum of its squared scores."""
    completions = completions_of(method, rolled_out, context)
    return signals_of(scores(method, completions), completions.group_N)


def scores(method: Method, completions: Completions) -> Tensor:
    """(N,) float64 guess of each completion's gradient norm, any unit; 0 where it has no gradient."""
    # By the method, and not by what a caller forwards: a group without a gradient has no signal either way.
    has_gradient_N = method.live(completions.advantage_N) & (completions.tokens_N > 0)
    return method.score(completions).double() * has_gradient_N


def signals_of(score_N: Tensor, group_N: Tensor) -> Tensor:
    """(Q,) of the scores of each group, the root of the sum of their squares."""
    return each_group(lambda score_QG: score_QG.square().sum(1).sqrt(), group_N, score_N)
