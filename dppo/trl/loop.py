"""What every trainer of ours does around TRL's loop, whatever it trains on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.hooks import CheckpointHooks
from dppo.trl.forwards import ForwardPasses
from dppo.trl.hooks import add_figures
from dppo.trl.metrics import PhaseClock


class TrainingLoop(CheckpointHooks):
    """TRL's loop, timed, in our layout, resumed from whole checkpoints only; before TRL's trainer among the bases."""

    length_setting = "max_completion_length"
    """What to lower where one sequence does not fit into memory."""
    together = 1
    """Sequences that one forward pass cannot part."""
    clock: PhaseClock
    forwards: ForwardPasses

    def add_figures(self, figures: Mapping[str, float]) -> None:
        """Add figures of this step to the next log."""
        add_figures(self, figures)

    def backward_but_last(
        self, model: Any, micro_batches: Sequence[MicroBatch], loss_of: Callable[[MicroBatch], Tensor]
    ) -> Tensor:
        """() the loss of one call: backward on all micro-batches but the last, whose loss TRL's loop differentiates.

        Args:
            model: the policy, as wrapped for training.
            micro_batches: of the call, at least one.
            loss_of: () the part of one of them; all parts add up to the loss.
        """
        *others, last = micro_batches
        logged: Tensor | float = 0.0
        for each in others:
            with self.accelerator.no_sync(model):
                loss = loss_of(each)
                self.accelerator.backward(loss)
            logged = logged + loss.detach()
        return loss_of(last) + logged

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's training loop; afterwards the models have the attention and the head they were loaded with.

        Args:
            resume_from_checkpoint: a folder, or True for the newest complete one in ``output_dir``.
            *args: as for TRL's trainer.
            **kwargs: as for TRL's trainer.

        Raises:
            CheckpointError: there is none, or it is damaged, or it lacks something without ``accept_missing``.
        """
        checkpoint = self.checked(resume_from_checkpoint)
        self.forwards.enter()
        try:
            return super().train(checkpoint, *args, **kwargs)
        finally:
            self.forwards.leave()

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step, timed: what no other phase has claimed is forward and backward."""
        with self.clock("forward_backward"), self.forwards.memory.explained():
            return super().training_step(*args, **kwargs)
