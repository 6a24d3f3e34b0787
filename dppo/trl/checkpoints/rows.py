"""What a checkpoint of a trainer on rows says beside its scores: steps skipped, and settings that a run depends on."""

import warnings
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, FileError
from dppo.files import read_json, write_json
from dppo.trl.checkpoints.files import OUR_STATE, advice
from dppo.trl.checkpoints.state import OF_THE_OPTIMIZER, changed_settings, settings_of, warn_of

OF_THE_DRAWS = (
    *("seed", "data_seed", "method", "row_prune_rate", "row_score", "prune_floor", "sampling_design"),
    *("prune_schedule", "prune_until", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("train_sampling_strategy", "dataloader_drop_last", "max_length"),
)
"""Settings that draws depend on, beside the number of processes."""
OF_THE_STEPS = (
    *("loss_type", "loss_weights", "beta", "margin_scale", "max_grad_norm", "optim", "lr_scheduler_type"),
    *("warmup_steps", "max_steps", "num_train_epochs", "bf16", "fp16"),
)
"""What steps depend on, beside the draws."""


def row_settings(args: Any, processes: int) -> dict[str, Any]:
    """The settings that a run on rows depends on, as JSON has them; each trainer has some of them."""
    names = (*OF_THE_DRAWS, *OF_THE_OPTIMIZER, *OF_THE_STEPS)
    return settings_of(args, processes, [name for name in names if name in vars(args)])


def write_row_state(folder: Path, *, rows: int, skipped: int, settings: dict[str, Any]) -> None:
    """Write the state into a checkpoint's folder; the file appears complete or not at all.

    Args:
        folder: of the checkpoint.
        rows: of the dataset.
        skipped: optimizer steps whose gradient was not finite.
        settings: of ``row_settings``.
    """
    write_json(folder / OUR_STATE, {"rows": rows, "skipped": skipped, "listed": True, "settings": settings})


def read_row_state(folder: Path, settings: dict[str, Any], *, trainer: str, new_optimizer: bool) -> int | None:
    """Steps skipped, of a checkpoint; None, with a warning, where it is of TRL's own trainer.

    A warning names each setting that is another one now.

    Args:
        folder: of the checkpoint.
        settings: of the run that resumes.
        trainer: name of the class that resumes.
        new_optimizer: whether the checkpoint's optimizer was left behind, and its settings with it.

    Raises:
        CheckpointError: the file is damaged.
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
    warn_of(changed_settings(before, settings), new_optimizer=new_optimizer)
    return skipped
