"""The joints of TRL's trainer at its checkpoints: written whole, read only if whole. ``hooks`` has all others."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers.trainer_utils import rotate_checkpoints
from transformers.training_args import OptimizerNames
from trl.trainer.base_trainer import _BaseTrainer

from dppo.errors import CheckpointError, ConfigError
from dppo.files import write_text
from dppo.trl.checkpoints import files
from dppo.trl.checkpoints.files import STATE, latest_checkpoint, reading, sole_writer_of, writing
from dppo.trl.checkpoints.state import saved_settings
from dppo.trl.grpo.config import DPPOConfig


class CheckpointHooks(_BaseTrainer):
    """What a subclass writes into a checkpoint and reads out of it, and that the whole of it is there.

    It goes before a trainer of TRL among the bases: ``class Joints(CheckpointHooks, GRPOTrainer)``.
    """

    lacking: Sequence[str] = ()
    """Of the checkpoint that was resumed from, what it did not have, in words."""
    last_checkpoint: Path | None = None
    """The newest that this run has written or gone on from; None before the first."""

    def save_extra(self, folder: Path) -> None:
        """Write into a checkpoint's folder what training needs beside TRL's files, before those are written."""

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote, after TRL has read its own."""

    def card(self) -> str:
        """What stands on the card of a saved model below TRL's own text, as Markdown."""
        return ""

    def lacks(self, name: str) -> bool:
        """Whether the checkpoint that was resumed from had lost a file of that name, and that was accepted."""
        return files.ITS.format(name) in self.lacking

    def save_now(self) -> Path:
        """The checkpoint of the current step, written unless it is there."""
        folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
        if not (folder / STATE).exists():
            self._save_checkpoint(self.model, None)
        return folder

    def checked(self, asked: str | bool | None) -> str | None:
        """The checkpoint to resume from, known to be whole; warnings name what it lacks where that was accepted.

        ``asked`` is a folder, True for the newest complete one, or None for what ``resume_from_checkpoint`` of the
        arguments says, which TRL leaves to scripts.
        """
        asked = files.asked_for(self.args.resume_from_checkpoint if asked is None else asked)
        folder = latest_checkpoint(self.args.output_dir or ".") if asked is True else asked and Path(asked)
        if asked is True and folder is None:
            raise CheckpointError(f"{self.args.output_dir} has no complete checkpoint. Call train() without one.")
        if not folder:
            return None
        same_ranks = saved_settings(folder).get("processes") in (None, self.accelerator.num_processes)
        accept_missing = cast(DPPOConfig, self.args).accept_missing
        self.lacking = _together(
            partial(files.check_whole, folder, same_ranks=same_ranks, accept_missing=accept_missing)
        )
        self.last_checkpoint = folder
        lines = [f"{folder} lacks {part}: the run goes on with a new one, and is another run" for part in self.lacking]
        if edited := self._contents_checked(folder):
            lines.append(
                f"{folder} has other {', '.join(edited)} than were written. Unless you did so: {files.advice(folder)}"
            )
        if getattr(self.args, "sync_ref_model", False):  # TRL does not save the reference
            lacks = f"{folder} lacks the reference that sync_ref_model has moved: the run goes on with the one given"
            if not accept_missing:
                raise CheckpointError(f"{lacks}, and is another run. To go on so: accept_missing=True.")
            lines.append(f"{lacks}, and is another run.")
        for line in [*files.passed_over(folder), *lines]:
            warnings.warn(line, stacklevel=3)
        return str(folder)

    def _contents_checked(self, folder: Path) -> list[str]:
        """``check_contents`` by all processes together, which share the reading where they share the folder."""
        state, own = self.accelerator.state, self.args.save_on_each_node
        readers = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if own else state.num_processes
        reader = state.local_process_index if own else state.process_index
        return sorted(_together(partial(files.check_contents, folder, reader=reader, readers=readers)))

    # -- in TRL's place -----------------------------------------------------------------------------------------

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # resumed at the end, where transformers takes one step more
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run_folder, saves = Path(self._get_output_dir(trial=trial)), self.args.should_save
        folder = run_folder / f"checkpoint-{self.state.global_step}"
        if saves:
            files.begin(folder)
        # Older ones are deleted when this one is on the disk, and not before.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with writing(folder):
                self.save_extra(folder)
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        files.flush(folder, rank=self.accelerator.process_index, every=saves)
        self.accelerator.wait_for_everyone()
        if saves:
            files.seal(folder)
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
        """As TRL's, with its card in the run's own folder; under FSDP the model itself, too, where checkpoints hold its
        shards: TRL writes nothing there.
        """
        own = Path(self.args.output_dir or "")
        if not _internal_call and Path(output_dir or own) == own:
            self.create_model_card(own.resolve().name)
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        kind = None if plugin is None else plugin.state_dict_type
        if plugin is None or _internal_call:
            super().save_model(output_dir, _internal_call)
            return
        plugin.set_state_dict_type("FULL_STATE_DICT")
        try:
            super().save_model(output_dir, _internal_call)
        finally:
            plugin.set_state_dict_type(kind)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with reading(Path(resume_from_checkpoint), "the model"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer: Any = self.optimizer
        before = [{*group} for group in optimizer.param_groups]
        with reading(Path(checkpoint), "the state of the optimizer or the learning rate scheduler"):
            super()._load_optimizer_and_scheduler(checkpoint)
        lost = {name for had, group in zip(before, optimizer.param_groups, strict=False) for name in had - {*group}}
        if lost:
            asked = OptimizerNames(self.args.optim).value
            had = saved_settings(Path(checkpoint)).get("optim", "as before")
            raise CheckpointError(
                f"{checkpoint} holds the state of another optimizer than optim={asked!r}: it has no "
                f"{', '.join(sorted(lost))}. Write optim: {had}, or for a new optimizer delete optimizer.pt there and "
                "set accept_missing: true."
            )
        self.load_extra(Path(checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with reading(Path(checkpoint), "the state of the random number generators"):
                super()._load_rng_state(checkpoint)


@contextmanager
def sole_writers_of(folder: Path) -> Iterator[None]:
    """As ``sole_writer_of`` for all processes of a run together: the first holds the lock, and all learn of a refusal.

    Raises:
        ConfigError: as there, in every process.
    """
    state, refusal = PartialState(), [""]
    with ExitStack() as held:
        if state.is_main_process:
            try:
                held.enter_context(sole_writer_of(folder, lambda line: state.print(f"dppo | {line}")))
            except ConfigError as error:
                refusal = [str(error)]
        broadcast_object_list(refusal)
        if refusal[0]:
            raise ConfigError(refusal[0])
        yield


def _together(check: Callable[[], list[str]]) -> list[str]:
    """What any process has found, as every process has it; an error of one is one of all. Nodes may differ."""
    try:
        said: list[str | CheckpointError] = [*check()]
    except CheckpointError as error:
        said = [error]
    found: list[Any] = gather_object(said)
    if errors := [each for each in found if isinstance(each, CheckpointError)]:
        raise errors[0]
    return list(dict.fromkeys(found))
