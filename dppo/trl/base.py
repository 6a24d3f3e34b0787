"""The base of the trainers with our forward passes: TRL's loop, timed, and packed.

``tests/trl/trl_methods.json`` lists the private names of TRL that are relied on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.trl.batch import MicroBatch
from dppo.trl.fixed import FixedSettings
from dppo.trl.forwards import ForwardPasses
from dppo.trl.loop import CheckpointedLoop, fill_gradients
from dppo.trl.metrics import LOADING, PhaseClock, StepSeconds
from dppo.trl.safeguards import NonFiniteGuard, end_at_exit


class TrainingLoop(CheckpointedLoop):
    """TRL's loop around our forward passes, before a trainer of TRL among the bases."""

    length_setting = "max_completion_length"
    """Setting to lower if one sequence does not fit into memory."""
    together = 1
    """Sequences that must share one forward pass."""

    def start_loop(self) -> None:
        """Get ready to train, after TRL's trainer and the method."""
        self.clock, self.forwards = PhaseClock(), ForwardPasses(self)
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        self.add_callback(StepSeconds(self))
        end_at_exit()
        self.fixed = FixedSettings(self)

    def backward_but_last(
        self, model: Any, micro_batches: Sequence[MicroBatch], loss_of: Callable[[MicroBatch], Tensor]
    ) -> Tensor:
        """() the loss of one call: backward on all micro-batches but the last, whose loss TRL's loop differentiates.

        If no rank has a micro-batch in the whole step, gradients are zeros: an optimizer would skip missing ones.
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
        logged = self.backward_unsynchronized(model, others, loss_of)
        with nullcontext() if ends_step else self.unsynchronized(model):
            return loss_of(last) + logged

    def end_call(self) -> None:
        """Read the metrics of a step, once its last backward pass is under way: nothing waits for them earlier."""

    def _add_tokens(self: Any, tokens: int) -> None:
        """Add tokens to those that a trainer on rows logs as ``num_tokens``."""
        self._total_train_tokens += tokens
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the models attend over rows, if no setting has changed."""
        self.fixed.check(self)
        self.forwards.enter()
        try:
            yield
        finally:
            self.forwards.leave()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's batches of an optimizer step, timed."""
        with self.clock(LOADING):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step. Its time outside the other phases is that of forward and backward."""
        before, run = self.clock.total["forward_backward"], self.forwards.run
        wait = self.accelerator.sync_gradients  # earlier calls of a step leave their work in the queue
        with self.clock("forward_backward", wait=wait), self.forwards.explained():
            loss = super().training_step(*args, **kwargs)
        if self.forwards.run is run:  # costs of passes are fitted to the total
            self.clock.total["forward_backward"] = before
        self.end_call()
        return loss


def loss_of_pairs(trainer: Any, model: Callable[..., Any], inputs: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """TRL's loss of a batch with ``model`` as the policy, and the metrics it would log, in place of earlier ones."""
    trainer._metrics = {"train": defaultdict(list)}
    return DPOTrainer._compute_loss(trainer, model, inputs, False), trainer._metrics["train"]
