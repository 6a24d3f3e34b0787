"""Direct group preference optimization (DGPO, arXiv:2510.08425) on a diffusers model, with pruned pictures.

A group is several pictures of one prompt. With group-normalised advantages ``A_i``, and errors ``e_i`` and ``e_ref_i``
of model and reference when they denoise picture i, ``s = beta * mean_i A_i (e_i - e_ref_i)`` is large if the model
prefers the worse pictures. The loss of a group is ``-log sigmoid(-s) / beta``. Its gradient is ``mean_i w A_i grad
e_i`` with ``w = sigmoid(s)``, a constant in the paper's code. Advantages sum to 0 within a group, so the partition
function, which all pictures of a prompt share, cancels.

**Pruned**, w comes from forward passes of all pictures of a group without a gradient, before the draw. Then pictures
are drawn for the backward pass and weighted by one over their probability. An estimate of ``s`` from the drawn
pictures would be unbiased, but its sigmoid is not.

Known of the paper: the formulas above, beta about 100, deterministic rollouts, and that pictures without an advantage
are left out. Unknown: its text, its results, how it draws timesteps. Here a group shares the timestep and the noise.
Its optional penalty on the distance of the velocities is left out.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.errors import ConfigError, DataError, RewardError, raise_problems
from dppo.groups import group_sizes, group_sums
from dppo.install import install_line
from dppo.objective import group_advantages
from dppo.pruning import Pruning, advantage_with_uncertainty
from dppo.rng import Purpose, generator, torch_generator
from dppo.typed import check_fields
from dppo.types import Completions, Draw, Rewards, check_lengths

EVERY_SAMPLE = Pruning(score=advantage_with_uncertainty)
"""All pictures with an advantage. At a rate, by ``|A| sqrt(e)``: the gradient of a squared error goes with its root."""
Reward = Callable[[Tensor, Tensor], Tensor]
"""``reward(pictures, labels)``: (N, channels, height, width) in [-1, 1] and (N,) to (N,) numbers; NaN if a picture has
no reward."""


# -- the loss ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPreference:
    """The loss, and the pruning of pictures.

    Raises:
        ConfigError: beta is not above 0, or the pruning is biased.
    """

    beta: float = 100.0
    """Inverse scale of the preference margin, > 0, in one over the unit of errors."""
    samples: Pruning = EVERY_SAMPLE
    """Pruning of pictures; those without an advantage are never trained on, which is exact."""

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
    """Pictures and factors of a step, fixed before any gradient is taken."""

    advantage_N: Tensor
    """(N,) float64."""
    margin_Q: Tensor
    """(Q,) float64 ``s`` of each group: above 0 if the model prefers the better pictures less than the reference."""
    group_N: Tensor
    """(N,) int64."""
    draw: Draw
    """(N,) pictures that are trained on, with their probability and weight."""

    @property
    def loss(self) -> float:
        """Mean over groups of ``-log sigmoid(-s)``, of all pictures; log 2 at the reference."""
        return float(torch.nn.functional.softplus(self.margin_Q).mean())

    @property
    def preference_Q(self) -> Tensor:
        """(Q,) float64 ``w`` of each group, in (0, 1): 0.5 if the model prefers the same as the reference."""
        return torch.sigmoid(self.margin_Q)

    @property
    def factor_N(self) -> Tensor:
        """(N,) float64 factor of each picture's error in the loss; 0 for pictures that were not drawn."""
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
        error_N: (N,) mean squared error of the model on each picture, >= 0; its gradient is not used.
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
        raise DataError("advantages and errors must be finite. Lower the learning rate, or look at the rewards.")
    sum_Q = group_sums((advantage_N * (error_N - ref_error_N))[:, None], group_N)[:, 0]
    return SamplePlan(
        advantage_N=advantage_N,
        margin_Q=preference.beta * sum_Q / size_Q,
        group_N=group_N,
        draw=preference.samples.draw(completions, rng),
    )


# -- the loop ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStep:
    """Metrics of a step."""

    reward: float
    """Mean over all pictures rolled out."""
    loss: float
    """Of whole groups; log 2 at the reference."""
    trained: int
    """Pictures with a backward pass."""
    live: int
    """Pictures with an advantage."""


class PictureLoop:
    """Trains a class-conditional UNet that predicts noise, such as ``diffusers.UNet2DModel``, by group preferences.

    Args:
        model: called as ``model(noisy, timestep, class_labels=labels).sample``; a copy of it is the reference.
        reward: of pictures.
        labels: number of classes of the model; each group is of one, drawn at random.
        seed: of all draws, >= 0.
        groups: of a step, >= 1.
        size: pictures of a group, >= 2.
        denoising_steps: of a rollout, >= 1, deterministic (DDIM).
        learning_rate: of AdamW, > 0.
        preference: the loss and its pruning.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(
        self,
        model: Any,
        reward: Reward,
        *,
        labels: int,
        seed: int = 0,
        groups: int = 4,
        size: int = 8,
        denoising_steps: int = 10,
        learning_rate: float = 1e-4,
        preference: GroupPreference | None = None,
    ) -> None:
        counts = {
            "labels": (labels, 1),
            "seed": (seed, 0),
            "groups": (groups, 1),
            "size": (size, 2),
            "denoising_steps": (denoising_steps, 1),
        }
        raise_problems(
            "PictureLoop",
            [f"{name}={n} must be >= {low}. Write {name}={low}." for name, (n, low) in counts.items() if n < low],
        )
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning_rate={learning_rate:g} must be > 0 and finite. Write learning_rate=1e-4.")
        self.model, self.reference = model, copy.deepcopy(model).eval().requires_grad_(False)
        self.reward, self.labels, self.seed, self.groups, self.size = reward, labels, seed, groups, size
        self.preference = preference or GroupPreference()
        self.scheduler = picture_scheduler()
        self.scheduler.set_timesteps(denoising_steps)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
        self.steps = 0

    def step(self) -> PictureStep:
        """One optimizer step on groups that the model rolls out as it is.

        Raises:
            RewardError: the reward function gives another number of rewards, or an infinite one.
            DataError: an error of the model that is not finite.
        """
        rng = generator(self.seed, Purpose.PROMPT_DRAW, self.steps)
        label_Q = torch.from_numpy(rng.integers(0, self.labels, self.groups))
        group_N = torch.arange(self.groups).repeat_interleave(self.size)
        label_N = label_Q[group_N]
        pictures = self.pictures(label_N, Purpose.ROLLOUT, self.steps)
        rewards = self._rewards(pictures, label_N)
        noisy, noise, time_N = self._noised(pictures, group_N)
        plan = self._plan(rewards, group_N, noisy, noise, time_N, label_N)
        row_B = plan.draw.keep_N.nonzero()[:, 0]
        if len(row_B):
            error_B = errors(self.model, noisy[row_B], noise[row_B], time_N[row_B], label_N[row_B])
            (plan.factor_N[row_B].to(error_B) * error_B).sum().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.steps += 1
        reward, live = rewards.total_N.nanmean().item(), int((plan.advantage_N != 0).sum())
        return PictureStep(reward=reward, loss=plan.loss, trained=len(row_B), live=live)

    @torch.no_grad()
    def pictures(self, label_N: Tensor, purpose: Purpose = Purpose.EVALUATION, key: int = 0) -> Tensor:
        """(N, channels, height, width) pictures in [-1, 1] of these labels, a function of seed, purpose and key."""
        config, device = self.model.config, next(self.model.parameters()).device
        shape = (len(label_N), config.in_channels, config.sample_size, config.sample_size)
        found = torch.randn(shape, generator=torch_generator(self.seed, purpose, key))
        for time in self.scheduler.timesteps:
            noise = self.model(found.to(device), time, class_labels=label_N.to(device)).sample.cpu()
            found = self.scheduler.step(noise, int(time), found, eta=0.0, return_dict=False)[0]
        return found.clamp(-1, 1)

    def _rewards(self, pictures: Tensor, label_N: Tensor) -> Rewards:
        found = torch.as_tensor(self.reward(pictures, label_N), dtype=torch.float64).detach()
        if found.shape != (len(pictures),):
            raise RewardError(
                f"the reward function gave {tuple(found.shape)} for {len(pictures)} pictures. Return one number each: "
                "pictures.flatten(1).mean(1)."
            )
        return Rewards.in_groups(found[:, None], self.size)

    def _noised(self, pictures: Tensor, group_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures with noise, the noise, and the timestep of each; a group shares both."""
        draws = torch_generator(self.seed, Purpose.DEAL, self.steps)
        last = int(self.scheduler.config["num_train_timesteps"])
        time_N = torch.randint(last, (self.groups,), generator=draws)[group_N]
        noise = torch.randn((self.groups, *pictures.shape[1:]), generator=draws)[group_N]
        return self.scheduler.add_noise(pictures, noise, time_N), noise, time_N

    @torch.no_grad()
    def _plan(self, rewards: Rewards, group_N: Tensor, *given: Tensor) -> SamplePlan:
        """Errors of both models on all pictures with an advantage, then the draw."""
        advantage_N = group_advantages(rewards)
        live_N = advantage_N != 0
        error_2N = torch.zeros(2, len(advantage_N), dtype=torch.float64)
        if live_N.any():
            for place, model in enumerate((self.model, self.reference)):
                error_2N[place, live_N] = errors(model, *(value[live_N] for value in given)).cpu().double()
        rng = generator(self.seed, Purpose.COMPLETION_DRAW, self.steps)
        return plan_samples(self.preference, advantage_N, group_N, error_2N[0], error_2N[1], rng)


def picture_scheduler() -> Any:
    """The noise schedule of training and rollouts: 1000 timesteps, cosine, noise predicted."""
    try:  # here, because the loss alone needs no diffusers
        from diffusers.schedulers.scheduling_ddim import DDIMScheduler  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        line = f"the loop needs {error.name}, which is not installed: {install_line('diffusion')}"
        raise ModuleNotFoundError(line, name=error.name) from None

    return DDIMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2", clip_sample=True)


def errors(model: Any, noisy: Tensor, noise: Tensor, time_N: Tensor, label_N: Tensor) -> Tensor:
    """(N,) mean squared error of the predicted noise of each picture, with its gradient."""
    device = next(model.parameters()).device
    noisy, noise, time_N, label_N = (each.to(device) for each in (noisy, noise, time_N, label_N))
    return (model(noisy, time_N, class_labels=label_N).sample - noise).square().flatten(1).mean(1)
