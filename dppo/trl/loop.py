"""TRL's training loop around the forward passes of a run: one backward pass each, synchronized once in a step."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dppo.errors import ConfigError
from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.hooks import CheckpointHooks, sole_writers_of
from dppo.trl.fixed import fixed_arguments
from dppo.trl.forwards import ForwardPasses
from dppo.trl.hooks import add_metrics
from dppo.trl.metrics import LOADING, PhaseClock

FIXED = (
    "beta", "epsilon_low", "epsilon_high", "entropy_coef", "loss_type", "scale_rewards", "num_generations",
    "num_iterations", "importance_sampling_level", "multi_objective_aggregation", "off_policy_mask_threshold",
)  # fmt: skip
"""Attributes that TRL's trainers read in each step, and the method here is made of; as prompts of the dataset."""
OWN = ("session", "source")
"""Attributes of the trainers here whose names a subclass may take for its own."""
OF_CONFIG = {"epsilon_low": "epsilon"}
"""Fields of the configuration with another name than the trainer's attribute."""


class TrainingLoop(CheckpointHooks):
    """TRL's loop, timed, in our layout, resumed from whole checkpoints only; before TRL's trainer among the bases."""

    length_setting = "max_completion_length"
    """Setting to lower if one sequence does not fit into memory."""
    together = 1
    """Sequences that one forward pass cannot part."""
    clock: PhaseClock
    forwards: ForwardPasses

    def remember_settings(self) -> None:
        """Keep what the trainer was made with; a subclass calls it once it has been made."""
        self._made_with = self._fixed_values()
        self._own_kinds = {name: type(getattr(self, name)) for name in OWN if hasattr(self, name)}
        self._made_for = self.train_dataset

    def _fixed_values(self) -> dict[str, Any]:
        """Values that the method is made of, by attribute; those of the arguments as ``args.field``."""
        return {name: getattr(self, name) for name in FIXED if hasattr(self, name)} | fixed_arguments(self.args)

    def check_settings(self) -> None:
        """Refuse values that were set on the trainer or its arguments after it was made: the method has others.

        Raises:
            ConfigError: an attribute of ``FIXED``, a field of the arguments that is read at construction alone, or the
                dataset, is another one; or one of ``OWN`` is not ours.
        """
        another = "after the trainer was made, and its method, prompts and history are of the first. Make another"
        if self.train_dataset is not self._made_for:
            raise ConfigError(f"trainer.train_dataset was changed {another} trainer, with it.")
        found = self._fixed_values()
        for name, before in self._made_with.items():
            if (now := found[name]) != before:
                field = name.removeprefix("args.")
                advice = f"whose config has {OF_CONFIG.get(field, field)}={now!r}"
                raise ConfigError(f"trainer.{name} was changed from {before!r} to {now!r} {another} trainer, {advice}.")
        for name, kind in self._own_kinds.items():
            if not isinstance(now := getattr(self, name), kind):
                raise ConfigError(
                    f"trainer.{name} is dppo's own attribute, and was set to {now!r}. "
                    f"Give yours another name: self.my_{name} = ..."
                )

    def drop_step(self) -> None:
        """Forget the step that an exception ended: ``train`` begins a new one when it is called again."""

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Add metrics of this step to the next log."""
        add_metrics(self, metrics)

    def backward_but_last(
        self, model: Any, micro_batches: Sequence[MicroBatch], loss_of: Callable[[MicroBatch], Tensor]
    ) -> Tensor:
        """() the loss of one call: backward on all micro-batches but the last, whose loss TRL's loop differentiates.

        Of a call without micro-batches it is a leaf. A step in which no rank has one ends with gradients of zero, on
        which an optimizer acts as with TRL; on missing gradients it would stand still.
        """
        ends_step = self.accelerator.sync_gradients
        if ends_step:
            begun, self.forwards.begun = self.forwards.begun, False
            if not micro_batches and not begun:
                fill_gradients(model)
            elif not micro_batches and self.accelerator.num_processes > 1:
                # Earlier calls, of other generations, have accumulated gradients that no pass has synchronized yet.
                micro_batches = [self.forwards.idle_pass()]
        if not micro_batches:
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        *others, last = micro_batches
        logged: Tensor | float = 0.0
        for each in others:
            with self._unsynchronized(model):
                loss = loss_of(each)
                self.accelerator.backward(loss)
            logged = logged + loss.detach()
        with nullcontext() if ends_step else self._unsynchronized(model):
            return loss_of(last) + logged

    def _unsynchronized(self, model: Any) -> AbstractContextManager[Any]:
        """A context without synchronization of gradients, which restores the synchronization that it found.

        Under FSDP2 accelerate's ``no_sync`` ends with synchronization on, and TRL's loop has it off until the last
        call of a step.
        """
        state = self.accelerator.gradient_state
        # With sync_each_batch every pass reduces: the same passes must do so on all ranks, whatever their calls.
        as_found = not self.accelerator.sync_gradients or state.plugin_kwargs.get("sync_each_batch", False)
        return nullcontext() if self.is_fsdp_enabled and as_found else self.accelerator.no_sync(model)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's training loop; afterwards the models have the attention and the head they were loaded with.

        ``resume_from_checkpoint`` is a folder, or True for the newest complete one in ``output_dir``; the others are
        as for TRL's trainer.

        Raises:
            CheckpointError: there is none, or it is damaged, or it lacks something without ``accept_missing``.
            ConfigError: another process trains into ``output_dir``, and checkpoints are saved there.
        """
        saves = self.args.save_strategy != "no"
        with sole_writers_of(Path(self.args.output_dir or ".")) if saves else nullcontext():
            checkpoint = self.checked(resume_from_checkpoint)
            self.check_settings()
            self.forwards.enter()
            try:
                return super().train(checkpoint, *args, **kwargs)
            except BaseException:
                self.drop_step()
                raise
            finally:
                self.forwards.leave()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's batches of an optimizer step, timed."""
        with self.clock(LOADING):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step. Its time outside the other phases is that of forward and backward.

        A call without a pass adds nothing to ``clock.total``, from which costs of passes are fitted.
        """
        before, run = self.clock.total["forward_backward"], self.forwards.run
        wait = self.accelerator.sync_gradients  # earlier calls of a step leave their work in the queue
        with self.clock("forward_backward", wait=wait), self.forwards.memory.explained():
            loss = super().training_step(*args, **kwargs)
        if self.forwards.run is run:
            self.clock.total["forward_backward"] = before
        self.end_call()
        return loss

    def end_call(self) -> None:
        """Read the metrics of a step when its last backward pass is under way: nothing waits for them in between."""


def fill_gradients(model: nn.Module) -> None:
    """Put a gradient of zero in the place of each missing one."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
