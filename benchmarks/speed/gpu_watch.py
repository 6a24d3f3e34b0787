"""Measurements of one trainer's optimizer steps on a GPU, taken at the ends of steps.

A run has four stages: steps that are not counted, timed steps, steps measured by phase, and one step under the
profiler. Inside a timed step this file reads no clock and never waits for the GPU.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from benchmarks.shared import Record, spread_with_ends
from benchmarks.speed.turns import clock_of_trl
from dppo.trl.metrics import PhaseClock, wall

WARM_UP, TIMED, PHASED, PROFILED, OVER = "warm-up", "timed", "phased", "profiled", "over"
PHASES = ("rollout", "prune", "log_probs", "forward_backward", "optimizer")
"""Phases of both trainers. Rewards are part of the rollout here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Optimizer steps of each stage of a run, in this order."""

    warm_up: int = 2
    """Kernels are chosen and compiled in these steps, and the optimizer's state is made."""
    timed: int = 3
    phased: int = 1
    profiled: int = 1

    @property
    def steps(self) -> int:
        """All steps."""
        return self.warm_up + self.timed + self.phased + self.profiled

    def at(self, step: int) -> str:
        """Stage of the optimizer step with this number; the first is 1."""
        sizes = {WARM_UP: self.warm_up, TIMED: self.timed, PHASED: self.phased, PROFILED: self.profiled}
        for stage, size in sizes.items():
            if step <= size:
                return stage
            step -= size
        return OVER


@dataclass(slots=True, kw_only=True)
class Work:
    """Forward passes of a step and their tokens, padding included."""

    passes: int = 0
    """With a gradient."""
    passes_no_grad: int = 0
    """Passes without a gradient, of old and reference policies."""
    tokens: int = 0
    tokens_no_grad: int = 0


class StepWatch(TrainerCallback):
    """Watches a trainer from its construction to the end of ``train``.

    Args:
        trainer: ``GRPOTrainer`` or ``DPPOTrainer``, not yet training, with at least ``stages.steps`` steps.
        device: where it trains.
    """

    def __init__(self, trainer: Any, stages: Stages, device: torch.device) -> None:
        self._trainer, self._stages, self._device = trainer, stages, device
        self._norms: list[Tensor] = []
        self._before: dict[str, float] = {}
        self._work, self._start = Work(), 0.0
        self._clock = PhaseClock()
        self._profile: Any = None
        self.seconds: list[float] = []
        """Seconds of each timed step."""
        self.work: list[Work] = []
        """Passes of each timed step."""
        self.phases: list[dict[str, float]] = []
        """Seconds by phase of the phased steps."""
        self.memory: dict[str, float | None] = {"peak_gib": None, "reserved_gib": None}
        """Most memory that tensors took in a timed step, weights and optimizer included, and that torch held."""
        self.busy: dict[str, float | int | None] = {}
        """Seconds of the profiled step in which the GPU computed, and the number of its kernels."""
        if hasattr(trainer, "clock"):
            trainer.clock.now = time.perf_counter  # the default waits for the GPU at the ends of each phase
        for model in (trainer.model, getattr(trainer, "ref_model", None)):
            if model is not None:
                model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._keep_norms(trainer.accelerator)
        trainer.add_callback(self)

    @property
    def norms(self) -> list[float]:
        """Gradient norm before clipping of each timed step."""
        first = self._stages.warm_up
        return [float(norm) for norm in self._norms[first : first + self._stages.timed]]

    def record(self) -> Record:
        """All measurements, flat: means of the timed steps, medians of the phases."""
        steps = max(1, len(self.work))
        counts = [asdict(work) for work in self.work]
        phases = {name: sorted(each[name] for each in self.phases) for name in (*PHASES, "other")}
        return {
            "unit": "s",
            **spread_with_ends(self.seconds),
            **self.memory,
            **{name: sum(count[name] for count in counts) / steps for name in asdict(Work())},
            **{f"phase_{name}": taken[len(taken) // 2] for name, taken in phases.items() if taken},
            **self.busy,
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` before the first step."""
        self._start = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after every optimizer step: keep its measurements, and prepare for the next one."""
        seconds, stage = self._now() - self._start, self._stages.at(state.global_step)
        if stage == TIMED:
            self.seconds.append(seconds)
            self.work.append(self._work)
        elif stage == PHASED:
            self._end_phased(seconds)
        elif stage == PROFILED:
            self._end_profile(seconds)
        following = self._stages.at(state.global_step + 1)
        if following != stage:
            self._leave(stage)
            self._enter(following)
        self._work, self._start = Work(), self._now()

    def _now(self) -> float:
        """Seconds, once the GPU has done its work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _enter(self, stage: str) -> None:
        if stage == TIMED and self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif stage == PHASED:
            self._start_phases()
        elif stage == PROFILED:
            activity = ProfilerActivity.CUDA if self._device.type == "cuda" else ProfilerActivity.CPU
            self._profile = profile(activities=[activity])
            self._profile.start()

    def _leave(self, stage: str) -> None:
        if stage == TIMED and self._device.type == "cuda":
            peak, held = torch.cuda.max_memory_allocated(self._device), torch.cuda.max_memory_reserved(self._device)
            self.memory = {"peak_gib": peak / 2**30, "reserved_gib": held / 2**30}

    def _count(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Hook on the models: a pass, and the tokens it is given. Reads shapes alone."""
        tokens = kwargs["input_ids"].numel()
        if torch.is_grad_enabled():
            self._work.passes += 1
            self._work.tokens += tokens
        else:
            self._work.passes_no_grad += 1
            self._work.tokens_no_grad += tokens

    def _keep_norms(self, accelerator: Any) -> None:
        """Keep the norms that clipping computes as tensors: a number would wait for the GPU."""
        clip = accelerator.clip_grad_norm_

        def clipped(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            self._norms.append(norm.detach().clone())
            return norm

        accelerator.clip_grad_norm_ = clipped

    def _start_phases(self) -> None:
        """From here on phases are timed, each up to the end of its work on the GPU."""
        own = hasattr(self._trainer, "clock")
        self._clock = self._trainer.clock if own else clock_of_trl(self._trainer)
        self._clock.now = wall
        self._before = dict(self._clock.total)

    def _end_phased(self, seconds: float) -> None:
        taken = {name: total - self._before.get(name, 0.0) for name, total in self._clock.total.items()}
        self._before = dict(self._clock.total)
        phases = {name: taken.get(name, 0.0) for name in PHASES}
        phases["rollout"] += taken.get("reward", 0.0)
        self.phases.append(phases | {"other": seconds - sum(phases.values())})

    def _end_profile(self, seconds: float) -> None:
        self._profile.stop()
        # ``events()`` of the profiler takes minutes for the 200,000 events of a step.
        events = self._profile.profiler.kineto_results.events()
        self._profile = None
        kind = self._device.type.upper()
        spans = [
            (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in events
            if event.device_type().name == kind and not event.is_user_annotation()
        ]
        busy = 1e-9 * covered(spans)
        shares = {"busy_seconds": busy, "busy_share": busy / seconds}
        self.busy = {"profiled_seconds": seconds, **shares, "kernels": len(spans)}


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals (start, end), in their unit.

    Example:
        ``covered([(0, 4), (2, 5), (7, 9)])`` is 7.
    """
    length, until = 0, None
    for start, end in sorted(spans):
        if until is None or start > until:
            length, until = length + end - start, end
        elif end > until:
            length, until = length + end - until, end
    return length
