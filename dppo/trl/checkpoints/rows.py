"""What a checkpoint of a trainer on rows says beside its scores: steps skipped, and settings that a run depends on."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, FileError
from dppo.files import read_json, write_json
from dppo.step.resumed import changed, remembered, warn_of
from dppo.trl.checkpoints.files import OUR_STATE, advice
from dppo.trl.checkpoints.state import OF_EVERY_RUN, OF_THE_OPTIMIZER, optimizer_effect

OF_TRL = (
    *("data_seed", "per_device_train_batch_size", "gradient_accumulation_steps", "train_sampling_strategy"),
    *("dataloader_drop_last", "max_length", "loss_type", "loss_weights", "beta"),
)
"""Fields of TRL that draws and steps depend on beside those of every run; each trainer has some of them."""


def row_settings(args: Any, processes: int) -> dict[str, Any]:
    """The settings that a run on rows depends on, as JSON has them."""
    return remembered(args, {"processes": processes}, (*OF_TRL, *OF_THE_OPTIMIZER, *OF_EVERY_RUN))


def write_row_state(folder: Path, *, rows: int, skipped: int, settings: dict[str, Any]) -> None:
    """Write the state into a checkpoint's folder; the file appears complete or not at all."""
    write_json(folder / OUR_STATE, {"rows": rows, "skipped": skipped, "listed": True, "settings": settings})


def read_row_state(folder: Path, settings: dict[str, Any], *, trainer: str, new_optimizer: bool) -> int | None:
    """Steps skipped, of a checkpoint; None, with a warning, where it is of TRL's own trainer.

    A warning names each setting that is another one now.
    """
    path = folder / OUR_STATE
    if not path.exists():
        warnings.warn(
            f"{folder} was not written by {trainer}: no row has a recorded score, and all are kept until they have "
            "one.",
            stacklevel=2,
        )
        return None
    try:
        state = read_json(path, advice="")
        before, skipped = dict(state["settings"]), int(state["skipped"])
    except (FileError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). {advice(folder)}") from error
    warn_of(changed(before, settings), partial(optimizer_effect, new_optimizer=new_optimizer))
    return skipped
