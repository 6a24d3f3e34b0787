"""Direct group preference optimization (DGPO, arXiv:2510.08425): groups of pictures, a better part and a worse one.

With group-normalised advantages ``A_i``, and ``e_i`` and ``e_ref_i`` the errors of model and reference when they
denoise picture i at a timestep that its group shares, ``s = beta * mean_i A_i (e_i - e_ref_i)`` says how far the model
prefers the worse part. The loss of a group is ``-log sigmoid(-s) / beta``; its gradient is ``mean_i w A_i grad e_i``
with ``w = sigmoid(s)``, the form of the paper's code, in which w is a constant. Advantages sum to 0 within a group, so
what all pictures of a prompt have in common, the partition function, cancels.

**Pruned**, w comes from all pictures of a group, by forward passes without a gradient, and is settled before the draw;
then pictures are drawn for the backward pass and weighted by one over their probability. An estimate of ``s`` from what
was drawn would be unbiased, and w of it is not: a sigmoid bends it.

Seen of the paper are the formulas above, beta about 100, deterministic rollouts, and that pictures without an advantage
are left out. Not seen: its text, its figures, how it draws timesteps. Here a group shares the timestep and the noise.
Its optional penalty on the distance of the velocities is left out.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DataError, raise_problems
from dppo.groups import group_sizes, group_sums
from dppo.pruning import Pruning, advantage_with_uncertainty
from dppo.typed import check_fields
from dppo.types import Completions, Draw, check_lengths

EVERY_SAMPLE = Pruning(score=advantage_with_uncertainty)
"""All pictures with an advantage; at a rate, by ``|A| sqrt(e)``: of a squared error the gradient goes with its root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPreference:
    """The loss, and which pictures it is trained on.

    Raises:
        ConfigError: beta is not above 0, or the pruning is biased.
    """

    beta: float = 100.0
    """How fast a preference that the model has already stops counting, > 0, in one over the unit of errors."""
    samples: Pruning = EVERY_SAMPLE
    """Which pictures are trained on; those without an advantage never are, which is exact."""

    def __post_init__(self) -> None:
        check_fields(self, "GroupPreference(beta=100.0, samples=EVERY_SAMPLE.at_rate(0.5))")
        problems = []
        if not (math.isfinite(self.beta) and self.beta > 0):
            problems.append(f"beta={self.beta!r} must be > 0 and finite. Write beta=100.0.")
        if self.samples.bias:
            problems.append(f"samples are pruned with a bias: {self.samples.bias}. Write samples=EVERY_SAMPLE.")
        raise_problems("GroupPreference", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """What a step trains on, settled before any gradient is taken."""

    advantage_N: Tensor
    """(N,) float64."""
    margin_Q: Tensor
    """(Q,) float64 ``s`` of each group: above 0 where the model prefers less well than the reference."""
    group_N: Tensor
    """(N,) int64."""
    draw: Draw
    """(N,) which pictures are trained on, with which probability and weight."""

    @property
    def loss(self) -> float:
        """Mean over groups of ``-log sigmoid(-s)``, that of all pictures; log 2 at the reference."""
        return float(torch.nn.functional.softplus(self.margin_Q).mean())

    @property
    def preference_Q(self) -> Tensor:
        """(Q,) float64 ``w`` of each group, in (0, 1): 0.5 where the model prefers what the reference does."""
        return torch.sigmoid(self.margin_Q)

    @property
    def factor_N(self) -> Tensor:
        """(N,) float64 what the error of each picture is multiplied by in the loss; 0 for those that were not drawn."""
        return self.draw.weight_N * self.preference_Q[self.group_N] * self.advantage_N / len(self.advantage_N)


def plan_samples(
    preference: GroupPreference,
    advantage_N: Tensor,
    group_N: Tensor,
    error_N: Tensor,
    ref_error_N: Tensor,
    rng: np.random.Generator,
) -> SamplePlan:
    """Preferences of whole groups, then a draw of pictures: ``(plan.factor_N[kept] * error[kept]).sum()`` is the loss.

    Args:
        preference: the loss and its pruning.
        advantage_N: (N,) of whole groups of one size, as from ``dppo.objective.group_advantages``.
        group_N: (N,) int64, the group of each picture, from 0 to Q - 1.
        error_N: (N,) mean squared error of the model on each picture, >= 0; a number, no gradient is read.
        ref_error_N: (N,) the same of the reference, at the same timestep and noise.
        rng: source of randomness of the draw.

    Raises:
        DataError: groups of different sizes, or numbers that are not finite.
        ShapeError: not one number of each for every picture.
    """
    group_N = group_N.cpu()
    size_Q = group_sizes(group_N)
    if len(set(size_Q.tolist())) > 1:
        raise DataError(f"groups have {sorted(set(size_Q.tolist()))} pictures. Give all groups as many.")
    advantage_N, error_N, ref_error_N = (each.detach().cpu().double() for each in (advantage_N, error_N, ref_error_N))
    completions = Completions(
        advantage_N=advantage_N,
        tokens_N=torch.ones_like(advantage_N),
        group_N=group_N,
        live_N=advantage_N != 0,
        uncertainty_N=error_N.clamp_min(0).sqrt(),
    )
    check_lengths(completions, len(ref_error_N))
    if not all(bool(found.isfinite().all()) for found in (advantage_N, error_N, ref_error_N)):
        raise DataError("advantages and errors must be finite: lower the learning rate, or look at the rewards.")
    sum_Q = group_sums((advantage_N * (error_N - ref_error_N))[:, None], group_N)[:, 0]
    return SamplePlan(
        advantage_N=advantage_N,
        margin_Q=preference.beta * sum_Q / size_Q,
        group_N=group_N,
        draw=preference.samples.draw(completions, rng),
    )
