"""TRL's loop for all trainers here: checkpoints that are complete, and our forward passes, timed.

``tests/trl/trl_methods.json`` lists the private names of TRL that are relied on.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.base_trainer import _BaseTrainer
from trl.trainer.dpo_trainer import DPOTrainer

from dppo.files import write_text
from dppo.trl.checkpoints import files, resume
from dppo.trl.fixed import FixedSettings
from dppo.trl.forwards import ForwardPasses
from dppo.trl.metrics import LOADING, MAIN, OURS, PhaseClock
from dppo.trl.safeguards import StepGuard, end_at_exit


class TrainingLoop(_BaseTrainer):
    """TRL's loop, before a trainer of TRL among the bases."""

    own_passes = True
    """False for a trainer whose forward passes are TRL's, untimed: it does not call ``start_loop``."""
    lacking: Collection[str] = ()
    """Files and parts that the resumed checkpoint did not have, which was accepted."""
    last_checkpoint: Path | None = None
    """The newest checkpoint that this run has written or resumed; None before the first."""

    def start_loop(self) -> None:
        """Get ready to train, after TRL's trainer and the method."""
        self.clock, self.forwards = PhaseClock(), ForwardPasses(self)
        self.guard, self.fixed = StepGuard(self), FixedSettings(self)
        self.add_callback(self.guard)
        end_at_exit()

    def save_extra(self, folder: Path) -> None:
        """Write the subclass's part of a checkpoint, before TRL writes its own."""

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote, after TRL has read its own."""

    def card(self) -> str:
        """Markdown for the card of a saved model, below TRL's own text."""
        return ""

    def drop_step(self) -> None:
        """Forget the step in progress: an exception has ended it, or a checkpoint takes its place."""

    def end_call(self) -> None:
        """Read the metrics of a step, once its last backward pass is under way: nothing waits for them earlier."""

    def add_metrics(self: Any, metrics: Mapping[str, float]) -> None:
        """Add metrics of this step to the next log of training; several of one name are averaged.

        NaN, of a metric that is not known, is left out: TRL would log None if there is no other value.
        """
        for name, value in metrics.items():
            if not math.isnan(value):
                self._metrics["train"][name].append(value)

    def _add_tokens(self: Any, tokens: int) -> None:
        """Add tokens to those that a trainer on rows logs as ``num_tokens``."""
        self._total_train_tokens += tokens
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as TRL does, but only those of our metrics that ``log_metrics`` selects."""
        metrics = self._metrics["train"]
        if self.args.log_metrics != "all":
            for name in [each for each in metrics if each.startswith(OURS) and each not in MAIN]:
                del metrics[name]
        super().log(logs, *args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's training loop; afterwards the models have the attention and the head they were loaded with.

        ``resume_from_checkpoint`` is a folder, or True for the newest complete one in ``output_dir``.

        Raises:
            CheckpointError: there is none, or it is damaged, or incomplete without ``accept_missing``.
            ConfigError: a setting has changed, or another process saves checkpoints in ``output_dir``.
        """
        with ExitStack() as after:
            if self.args.save_strategy != "no":
                after.enter_context(resume.sole_writers_of(Path(self.args.output_dir or ".")))
            checkpoint, self.lacking = resume.checked_checkpoint(self, resume_from_checkpoint)
            self.last_checkpoint = checkpoint or self.last_checkpoint
            if self.own_passes:
                self.fixed.check(self)
                self.forwards.enter()
                after.callback(self.forwards.leave)
            try:
                return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
            except BaseException:
                self.drop_step()
                raise

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed at the end: transformers would take one more step
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's batches of an optimizer step, timed."""
        with self.clock(LOADING) if self.own_passes else nullcontext():
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's training step. Its time outside the other phases is that of forward and backward."""
        if not self.own_passes:
            return super().training_step(*args, **kwargs)
        before, run = self.clock.total["forward_backward"], self.forwards.run
        wait = self.accelerator.sync_gradients  # earlier calls of a step leave their work in the queue
        with self.clock("forward_backward", wait=wait), self.forwards.explained():
            loss = super().training_step(*args, **kwargs)
        if self.forwards.run is run:  # costs of passes are fitted to the total
            self.clock.total["forward_backward"] = before
        self.end_call()
        return loss

    def backward_but_last(self, model: Any, parts: Sequence[Any], loss_of: Callable[[Any], Tensor]) -> Tensor:
        """() the loss of one call: backward on all its parts but the last, whose loss TRL's loop differentiates.

        If no rank has a part in the whole step, gradients are zeros: an optimizer would skip missing ones.
        """
        ends_step = self.accelerator.sync_gradients
        if ends_step and self.own_passes:
            parts = self.forwards.of_last_call(parts)
        if not parts:
            if ends_step:
                fill_gradients(model)
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        *others, last = parts
        logged: Tensor | float = 0.0
        for each in others:
            with self.unsynchronized(model):
                loss = loss_of(each)
                self.accelerator.backward(loss)
            logged = logged + loss.detach()
        with nullcontext() if ends_step else self.unsynchronized(model):
            return loss_of(last) + logged

    def unsynchronized(self, model: Any) -> AbstractContextManager[Any]:
        """A context without synchronization of gradients.

        Under FSDP2 accelerate's ``no_sync`` ends with it on, and TRL's loop has it off until a step's last call.
        """
        state = self.accelerator.gradient_state
        # With sync_each_batch every pass reduces: the same passes must do so on all ranks, whatever their calls.
        as_found = not self.accelerator.sync_gradients or state.plugin_kwargs.get("sync_each_batch", False)
        return nullcontext() if self.is_fsdp_enabled and as_found else self.accelerator.no_sync(model)

    def save_now(self) -> Path:
        """The checkpoint of the current step, written unless it is there."""
        folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
        if not files.checkpoints_of(folder.parent).get(folder):
            self._save_checkpoint(self.model, None)
        return folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run_folder, saves = Path(self._get_output_dir(trial=trial)), self.args.should_save
        folder = run_folder / f"checkpoint-{self.state.global_step}"
        errors = files.checkpoint_errors(folder, "it could not be written; if its disk is full, free space")
        # Transformers would delete older checkpoints before the new one is on the disk.
        with patch.object(self.args, "save_total_limit", None), errors:
            if saves:  # an earlier checkpoint of this step must not count as complete, nor as TRL's own
                for name in (files.LIST_FILE, files.STATE):
                    (folder / name).unlink(missing_ok=True)
            self.save_extra(folder)
            if saves:
                resume.save_reference(self, folder)
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if saves:
                files.seal(folder)
            self.accelerator.wait_for_everyone()  # all ranks see that it is complete: ``save_now`` asks
        if saves:
            limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
            rotate_checkpoints(str(run_folder), limit, best_model_checkpoint=best, use_mtime=True)
        self.last_checkpoint = folder

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """As TRL's, with ``card`` below."""
        given = [tags] if isinstance(tags, str) else tags or []
        super().create_model_card(model_name, dataset_name, ["dppo", *given])
        if self.is_world_process_zero():
            path = Path(self.args.output_dir or "") / "README.md"
            write_text(path, f"{path.read_text(encoding='utf-8').rstrip()}\n\n{self.card()}")

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As TRL's, with a card in the run's own folder; and of FSDP's shards the whole model, which TRL leaves out."""
        own = Path(self.args.output_dir or "")
        if not _internal_call and Path(output_dir or own) == own:
            self.create_model_card(own.resolve().name)
        plugin = None if _internal_call else getattr(self.accelerator.state, "fsdp_plugin", None)
        with ExitStack() as after:
            if plugin is not None:
                after.callback(plugin.set_state_dict_type, plugin.state_dict_type)
                plugin.set_state_dict_type("FULL_STATE_DICT")
            super().save_model(output_dir, _internal_call)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with files.checkpoint_errors(Path(resume_from_checkpoint), "the model is damaged or another one"):
            if not resume.load_renamed(self, resume_from_checkpoint, self.model if model is None else model):
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        folder = str(self.state.best_model_checkpoint)
        with files.checkpoint_errors(Path(folder), "the best model is damaged or another one"):
            if not resume.load_renamed(self, folder, self.model):
                super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        with resume.optimizer_checked(self, folder):
            super()._load_optimizer_and_scheduler(checkpoint)
        self.load_extra(folder)
        resume.load_reference(self, folder)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with files.checkpoint_errors(Path(checkpoint), "the state of the random numbers is damaged"):
                super()._load_rng_state(checkpoint)


def fill_gradients(model: nn.Module) -> None:
    """Put gradients of zero in place of missing ones, unless some are there."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if all(parameter.grad is None for parameter in trained):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)


def loss_of_pairs(trainer: Any, model: Callable[..., Any], inputs: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """TRL's loss of a batch with ``model`` as the policy, and the metrics it would log, in place of earlier ones."""
    trainer._metrics = {"train": defaultdict(list)}
    return DPOTrainer._compute_loss(trainer, model, inputs, False), trainer._metrics["train"]
