"""TRL's loop with checkpoints that are complete, for all trainers here."""

import math
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.trainer_utils import rotate_checkpoints
from transformers.training_args import OptimizerNames
from trl.trainer.base_trainer import _BaseTrainer

from dppo.errors import CheckpointError, ConfigError
from dppo.files import write_text
from dppo.trl.checkpoints import files
from dppo.trl.checkpoints.state import saved_settings
from dppo.trl.metrics import left_out

REFERENCE = "dppo_reference.safetensors"


class CheckpointedLoop(_BaseTrainer):
    """TRL's loop with checkpoints that are written and resumed whole, before a trainer of TRL among the bases."""

    lacking: Collection[str] = ()
    """Files and parts that the resumed checkpoint did not have, which was accepted."""
    last_checkpoint: Path | None = None
    """The newest checkpoint that this run has written or resumed; None before the first."""

    def add_metrics(self: Any, metrics: Mapping[str, float]) -> None:
        """Add metrics of this step to the next log of training; several of one name are averaged.

        NaN, of a metric that is not known, is left out: TRL would log None if there is no other value.
        """
        for name, value in metrics.items():
            if not math.isnan(value):
                self._metrics["train"][name].append(value)

    def save_extra(self, folder: Path) -> None:
        """Write the subclass's part of a checkpoint, before TRL writes its own."""

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote, after TRL has read its own."""

    def card(self) -> str:
        """Markdown for the card of a saved model, below TRL's own text."""
        return ""

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's; of our metrics those that ``log_metrics`` names."""
        metrics = cast(Any, self)._metrics["train"]
        for name in left_out(metrics, cast(Any, self.args).log_metrics):
            del metrics[name]
        super().log(logs, *args, **kwargs)

    def save_now(self) -> Path:
        """The checkpoint of the current step, written unless it is there."""
        folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
        if folder not in files.complete_checkpoints(folder.parent):
            self._save_checkpoint(self.model, None)
        return folder

    def checked(self, asked: str | bool | None) -> str | None:
        """The checkpoint to resume from, or None; warnings name missing parts that were accepted."""
        # TRL leaves this argument to scripts.
        asked = files.asked_for(self.args.resume_from_checkpoint if asked is None else asked)
        if not asked:
            return None
        folder = files.latest_checkpoint(self.args.output_dir or ".") if asked is True else Path(asked)
        if folder is None:
            raise CheckpointError(f"{self.args.output_dir} has no complete checkpoint. Call train() without one.")
        state = self.accelerator.state
        # Processes of a node share the reading: nodes may have folders of their own.
        readers = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), state.num_processes)
        reader = state.local_process_index % readers
        same_ranks = saved_settings(folder).get("processes") in (None, state.num_processes)
        found = gather_object([files.find_faults(folder, same_ranks=same_ranks, reader=reader, readers=readers)])
        faults: dict[str, str] = {name: fault for each in found for name, fault in each.items()}
        if self._moved_reference is not None and not (folder / REFERENCE).exists():  # one of TRL's own, or of shards
            faults["the reference that sync_ref_model has moved"] = files.MISSING
        files.refuse(folder, faults, accept_missing=cast(Any, self.args).accept_missing)
        missing, edited = (sorted(n for n in faults if faults[n] == fault) for fault in (files.MISSING, files.EDITED))
        self.lacking, self.last_checkpoint = missing, folder
        lines = files.passed_over(folder)
        if missing:
            lines.append(f"{folder} lacks {' and '.join(missing)}: the run starts with new ones, and is another run")
        if edited:
            names = " and ".join(edited)
            lines.append(f"{folder}: {names} changed since it was written. Unless you did so: {files.advice(folder)}")
        for line in lines:
            warnings.warn(line, stacklevel=3)
        return str(folder)

    @property
    def _moved_reference(self) -> nn.Module | None:
        """The reference policy if ``sync_ref_model`` moves it: TRL saves it in no checkpoint. None otherwise."""
        reference = getattr(self, "ref_model", None)
        moved = reference is not None and getattr(self.args, "sync_ref_model", False)
        return self.accelerator.unwrap_model(reference) if moved else None

    def drop_step(self) -> None:
        """Forget the step in progress: an exception has ended it, or a checkpoint takes its place."""

    def running(self) -> AbstractContextManager[Any]:
        """A context for the whole of ``train``."""
        return nullcontext()

    def unsynchronized(self, model: Any) -> AbstractContextManager[Any]:
        """A context without synchronization of gradients.

        Under FSDP2 accelerate's ``no_sync`` ends with it on, and TRL's loop has it off until a step's last call.
        """
        state = self.accelerator.gradient_state
        # With sync_each_batch every pass reduces: the same passes must do so on all ranks, whatever their calls.
        as_found = not self.accelerator.sync_gradients or state.plugin_kwargs.get("sync_each_batch", False)
        return nullcontext() if self.is_fsdp_enabled and as_found else self.accelerator.no_sync(model)

    def backward_unsynchronized(
        self, model: Any, parts: Sequence[Any], loss_of: Callable[[Any], Tensor]
    ) -> Tensor | float:
        """() the sum of the losses of some parts of a call, each differentiated at once, without synchronization."""
        logged: Tensor | float = 0.0
        for each in parts:
            with self.unsynchronized(model):
                loss = loss_of(each)
                self.accelerator.backward(loss)
            logged = logged + loss.detach()
        return logged

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """TRL's training loop; afterwards the models have the attention and the head they were loaded with.

        ``resume_from_checkpoint`` is a folder, or True for the newest complete one in ``output_dir``.

        Raises:
            CheckpointError: there is none, or it is damaged, or incomplete without ``accept_missing``.
            ConfigError: a setting has changed, or another process saves checkpoints in ``output_dir``.
        """
        saves = self.args.save_strategy != "no"
        with sole_writers_of(Path(self.args.output_dir or ".")) if saves else nullcontext():
            checkpoint = self.checked(resume_from_checkpoint)
            with self.running():
                try:
                    return super().train(checkpoint, *args, **kwargs)
                except BaseException:
                    self.drop_step()
                    raise

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed at the end: transformers would take one more step
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run_folder, saves = Path(self._get_output_dir(trial=trial)), self.args.should_save
        folder = run_folder / f"checkpoint-{self.state.global_step}"
        # Transformers would delete older checkpoints before the new one is on the disk.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with files.checkpoint_errors(folder, "it could not be written; if its disk is full, free space"):
                if saves:  # a checkpoint of an earlier try at this step is no longer complete, nor one of TRL's own
                    for name in (files.LIST_FILE, files.STATE):
                        (folder / name).unlink(missing_ok=True)
                self.save_extra(folder)
                reference = self._moved_reference if saves else None
                if reference is not None and not any(isinstance(each, DTensor) for each in reference.parameters()):
                    folder.mkdir(parents=True, exist_ok=True)
                    # Cloned: safetensors refuses tensors that share memory, such as a tied head.
                    tensors = {name: value.detach().cpu().clone() for name, value in reference.state_dict().items()}
                    save_file(tensors, folder / REFERENCE)
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if saves:
                    files.seal(folder)
                self.accelerator.wait_for_everyone()  # all ranks see that it is complete: ``save_now`` asks
        finally:
            self.args.save_total_limit = limit
        if saves:
            best = self.state.best_model_checkpoint
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
            if not self._load_renamed(resume_from_checkpoint, self.model if model is None else model):
                super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        folder = str(self.state.best_model_checkpoint)
        with files.checkpoint_errors(Path(folder), "the best model is damaged or another one"):
            if not self._load_renamed(folder, self.model):
                super()._load_best_model()

    def _load_renamed(self, folder: str, model: Any) -> bool:
        """Load weights if the model lacks some of their names in the file; True if it did.

        Transformers writes mixtures of experts and vision-language models so, and its loop skips those names.
        """
        policy = self.accelerator.unwrap_model(model)
        if self.is_fsdp_enabled or not isinstance(policy, PreTrainedModel):
            return False
        other_names = bool(files.weight_names(Path(folder)) - policy.state_dict().keys())
        if other_names:
            load_saved_weights(policy, folder)
        return other_names

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder, optimizer = Path(checkpoint), cast(Any, self.optimizer)
        known = [{*group} for group in optimizer.param_groups]
        with files.checkpoint_errors(folder, "the state of the optimizer or its schedule is damaged or of another one"):
            super()._load_optimizer_and_scheduler(checkpoint)
        # Torch loads the state of another optimizer, and fails with a KeyError in the first step.
        lost = {name for had, group in zip(known, optimizer.param_groups, strict=False) for name in had - {*group}}
        if lost:
            before, now = saved_settings(folder).get("optim", "as before"), OptimizerNames(self.args.optim).value
            raise CheckpointError(
                f"{folder} is of another optimizer than optim={now!r}: it has no {', '.join(sorted(lost))}. Write "
                f"optim: {before}, or delete its optimizer.pt and set accept_missing: true."
            )
        self.load_extra(folder)
        reference = self._moved_reference
        if reference is not None and (folder / REFERENCE).exists():
            with files.checkpoint_errors(folder, "the reference that sync_ref_model has moved is damaged"):
                reference.load_state_dict(load_file(folder / REFERENCE))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with files.checkpoint_errors(Path(checkpoint), "the state of the random numbers is damaged"):
                super()._load_rng_state(checkpoint)


def fill_gradients(model: nn.Module) -> None:
    """Put a gradient of zero in the place of each missing one."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def load_saved_weights(model: PreTrainedModel, folder: str) -> None:
    """Load weights that ``save_pretrained`` wrote, by its names for them; ``ValueError`` if the file lacks some."""
    # The widest type: a narrower one would round the weights of a model of several types.
    dtype = reduce(torch.promote_types, {value.dtype for value in model.parameters()})
    saved, found = cast(Any, type(model)).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"it has no weights {', '.join(missing[:3])}{' and others' * (len(missing) > 3)}")
    model.load_state_dict(saved.state_dict())


@contextmanager
def sole_writers_of(folder: Path) -> Iterator[None]:
    """``sole_writer_of`` for all processes of a run: the first holds the lock, and all raise its refusal."""
    state, refusal = PartialState(), list[ConfigError | None]([None])
    with ExitStack() as held:
        if state.is_main_process:
            try:
                held.enter_context(files.sole_writer_of(folder, lambda line: state.print(f"dppo | {line}")))
            except ConfigError as error:
                refusal = [error]
        broadcast_object_list(refusal)
        if refusal[0] is not None:
            raise refusal[0]
        yield
