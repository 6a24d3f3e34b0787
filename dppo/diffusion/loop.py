"""DGPO on a diffusers model, on one screen: roll groups of pictures out, reward them, prune, update."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.diffusion.preference import GroupPreference, SamplePlan, plan_samples
from dppo.errors import ConfigError, RewardError, raise_problems
from dppo.install import install_line
from dppo.objective import group_advantages
from dppo.rng import Purpose, generator, torch_generator
from dppo.types import Rewards

try:
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    line = f"dppo.diffusion.loop needs {error.name}, which is not installed: {install_line('diffusion')}"
    raise ModuleNotFoundError(line, name=error.name) from None

Reward = Callable[[Tensor, Tensor], Tensor]
"""``reward(pictures, labels)``: (N, channels, height, width) in [-1, 1] and (N,) to (N,) numbers; NaN where there is no
reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStep:
    """What a step did."""

    reward: float
    """Mean over all pictures rolled out."""
    loss: float
    """Of whole groups; log 2 at the reference."""
    trained: int
    """Pictures that a backward pass was run on."""
    live: int
    """Pictures with an advantage."""


class PictureLoop:
    """Trains a class-conditional UNet that predicts noise, such as ``diffusers.UNet2DModel``, by group preferences.

    Args:
        model: called as ``model(noisy, timestep, class_labels=labels).sample``; a copy of it is the reference.
        reward: of pictures.
        labels: how many classes the model knows; each group is of one, drawn at random.
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
        config = self.model.config
        shape = (len(label_N), config.in_channels, config.sample_size, config.sample_size)
        found = torch.randn(shape, generator=torch_generator(self.seed, purpose, key))
        for time in self.scheduler.timesteps:
            device = next(self.model.parameters()).device
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
        return self.scheduler.add_noise(pictures, noise, time_N), noise, time_N  # pyright: ignore[reportArgumentType]

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


def picture_scheduler() -> DDIMScheduler:
    """The noise schedule of training and rollouts: 1000 timesteps, cosine, noise predicted."""
    return DDIMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2", clip_sample=True)


def errors(model: Any, noisy: Tensor, noise: Tensor, time_N: Tensor, label_N: Tensor) -> Tensor:
    """(N,) mean squared error of the predicted noise of each picture, with its gradient."""
    device = next(model.parameters()).device
    noisy, noise, time_N, label_N = (each.to(device) for each in (noisy, noise, time_N, label_N))
    return (model(noisy, time_N, class_labels=label_N).sample - noise).square().flatten(1).mean(1)
