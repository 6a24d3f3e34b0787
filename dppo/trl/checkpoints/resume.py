"""The start of a resumed run: its checkpoint, checked, and what transformers does not load or refuse itself."""

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.training_args import OptimizerNames

from dppo.errors import CheckpointError, ConfigError
from dppo.trl.checkpoints import files
from dppo.trl.checkpoints.state import saved_settings

REFERENCE = "dppo_reference.safetensors"


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


def checked_checkpoint(trainer: Any, asked: str | bool | None) -> tuple[Path | None, list[str]]:
    """The checkpoint to resume from, or None, and its missing parts that were accepted. Warnings name them."""
    # TRL leaves this argument to scripts.
    asked = files.asked_for(trainer.args.resume_from_checkpoint if asked is None else asked)
    if not asked:
        return None, []
    folder = files.latest_checkpoint(trainer.args.output_dir or ".") if asked is True else Path(asked)
    if folder is None:
        raise CheckpointError(f"{trainer.args.output_dir} has no complete checkpoint. Call train() without one.")
    state = trainer.accelerator.state
    # Processes of a node share the reading: nodes may have folders of their own.
    readers = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), state.num_processes)
    reader = state.local_process_index % readers
    same_ranks = saved_settings(folder).get("processes") in (None, state.num_processes)
    found = gather_object([files.find_faults(folder, same_ranks=same_ranks, reader=reader, readers=readers)])
    faults: dict[str, str] = {name: fault for each in found for name, fault in each.items()}
    if moved_reference(trainer) is not None and not (folder / REFERENCE).exists():  # one of TRL's own, or of shards
        faults["the reference that sync_ref_model has moved"] = files.MISSING
    files.refuse(folder, faults, accept_missing=trainer.args.accept_missing)
    missing, edited = (sorted(n for n in faults if faults[n] == fault) for fault in (files.MISSING, files.EDITED))
    lines = files.passed_over(folder)
    if missing:
        lines.append(f"{folder} lacks {' and '.join(missing)}: the run starts with new ones, and is another run")
    if edited:
        changed = f"{' and '.join(edited)} changed since it was written"
        lines.append(f"{folder}: {changed}. Unless you did so: {files.advice(folder)}")
    for line in lines:
        warnings.warn(line, stacklevel=3)
    return folder, missing


def moved_reference(trainer: Any) -> nn.Module | None:
    """The reference policy if ``sync_ref_model`` moves it: TRL saves it in no checkpoint. None otherwise."""
    reference = getattr(trainer, "ref_model", None)
    moved = reference is not None and getattr(trainer.args, "sync_ref_model", False)
    return trainer.accelerator.unwrap_model(reference) if moved else None


def save_reference(trainer: Any, folder: Path) -> None:
    """Write the reference policy into the folder, which is there, if it moves and is not in shards."""
    reference = moved_reference(trainer)
    if reference is not None and not any(isinstance(each, DTensor) for each in reference.parameters()):
        # Cloned: parameters may share storage, such as a tied head, or be views, as transformers makes them at load.
        tensors = {name: value.detach().cpu().clone().contiguous() for name, value in reference.state_dict().items()}
        save_file(tensors, folder / REFERENCE)


def load_reference(trainer: Any, folder: Path) -> None:
    reference = moved_reference(trainer)
    if reference is not None and (folder / REFERENCE).exists():
        with files.checkpoint_errors(folder, "the reference that sync_ref_model has moved is damaged"):
            reference.load_state_dict(load_file(folder / REFERENCE))


@contextmanager
def optimizer_checked(trainer: Any, folder: Path) -> Iterator[None]:
    """Context for loading the optimizer's state: a damaged state, or one of another optimizer, is refused.

    Torch loads the state of another one, and fails with a KeyError in the first step.
    """
    names_G = [{*group} for group in trainer.optimizer.param_groups]
    with files.checkpoint_errors(folder, "the state of the optimizer or its schedule is damaged or of another one"):
        yield
    pairs = zip(names_G, trainer.optimizer.param_groups, strict=False)
    lost = {name for had, group in pairs for name in had - {*group}}
    if lost:
        before, now = saved_settings(folder).get("optim", "as before"), OptimizerNames(trainer.args.optim).value
        raise CheckpointError(
            f"{folder} is of another optimizer than optim={now!r}: it has no {', '.join(sorted(lost))}. Write "
            f"optim: {before}, or delete its optimizer.pt and set accept_missing: true."
        )


def load_renamed(trainer: Any, folder: str, model: Any) -> bool:
    """Load the weights if the file has names that the model lacks; return True if so.

    Transformers renames weights in files of mixtures of experts and vision-language models; its loop skips those.
    """
    policy = trainer.accelerator.unwrap_model(model)
    if trainer.is_fsdp_enabled or not isinstance(policy, PreTrainedModel):
        return False
    other_names = bool(files.weight_names(Path(folder)) - policy.state_dict().keys())
    if other_names:
        load_saved_weights(policy, folder)
    return other_names


def load_saved_weights(model: PreTrainedModel, folder: str) -> None:
    """Load weights that ``save_pretrained`` wrote, by its names for them; ``ValueError`` if the file lacks some."""
    # The widest type: a narrower one would round the weights of a model of several types.
    dtype = reduce(torch.promote_types, {value.dtype for value in model.parameters()})
    saved, found = cast(Any, type(model)).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"it has no weights {', '.join(missing[:3])}{' and others' * (len(missing) > 3)}")
    model.load_state_dict(saved.state_dict())
