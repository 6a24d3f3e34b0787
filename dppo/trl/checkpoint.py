"""Our part of a checkpoint: the prompt history, the place in the stream, and a generation still in use.

Written before TRL writes its part, so a folder that has TRL's state has ours too. JSON, npz and safetensors only.
"""

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dppo.errors import CheckpointError
from dppo.files import write_json
from dppo.trl.window import Window

if TYPE_CHECKING:
    from dppo.trl.trainer import DPPOTrainer

STATE_FILE = "dppo_state.json"

SETTINGS = (
    "seed",
    "method",
    "prompt_mode",
    "prompt_prune_rate",
    "completion_prune_rate",
    "prune_floor",
    "completion_score",
    "num_generations",
    "generation_batch_size",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "num_iterations",
    "completion_budget",
    "sampling_design",
    "history_half_life",
    "prune_schedule",
    "prune_until",
    "advantage_power",
    "max_rounds",
    "round_factor",
    "loss_type",
)
"""What draws depend on, beside the number of processes."""

WINDOW_SETTINGS = {
    "processes",
    "num_generations",
    "generation_batch_size",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "num_iterations",
}
"""With one of these changed, a generation in use cannot go on: it is rolled out again."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run is, beside what TRL saves."""

    generation: int
    """Generations so far: the clock of the history and the key of the next draws."""
    calls: int
    """Forward calls since the current generation, 0 where a new one is due."""
    position: dict[str, Any] | None
    """Place in the prompt stream; None for a streamed dataset."""
    skipped: int
    """Optimizer steps skipped for a gradient that was not finite."""
    settings: dict[str, Any]
    """What draws and windows depend on; a resumed run with other settings says so."""


def settings(trainer: "DPPOTrainer") -> dict[str, Any]:
    """The settings that decide which prompts and completions are drawn."""
    args = trainer.args
    return {name: getattr(args, name) for name in SETTINGS} | {"processes": trainer.accelerator.num_processes}


def save_state(trainer: "DPPOTrainer", run_folder: str) -> None:
    """Write our part of the checkpoint at the trainer's current step: shared state once, windows per rank."""
    folder = Path(run_folder) / f"checkpoint-{trainer.state.global_step}"
    folder.mkdir(parents=True, exist_ok=True)
    calls = trainer._step % trainer.schedule.length
    if calls and trainer._window is not None:
        trainer._window.save(_window_file(folder, trainer))
    if not trainer.accelerator.is_main_process:
        return
    state = RunState(
        generation=trainer._generation,
        calls=calls,
        position=None if trainer.selector is None else trainer.selector.save(folder),
        skipped=trainer.guard.skipped,
        settings=settings(trainer),
    )
    write_json(folder / STATE_FILE, asdict(state))


def load_state(trainer: "DPPOTrainer", checkpoint: str) -> None:
    """Put the trainer where the checkpoint was taken, mid-generation if need be.

    A checkpoint of TRL's own trainer has no state of ours: the run goes on with an empty history and says so. Under
    other settings the run goes on with those, and says which; a generation in use is then rolled out again.

    Raises:
        CheckpointError: if a file is damaged or missing, or the history is of another dataset.
    """
    folder = Path(checkpoint)
    path = folder / STATE_FILE
    if not path.exists():
        warnings.warn(
            f"{folder} was not written by DPPOTrainer: training goes on from its weights with an empty prompt history "
            "and the prompt order of a new run.",
            stacklevel=2,
        )
        return
    try:
        state = RunState(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Resume from an earlier checkpoint folder.") from error
    changed = {k: (v, settings(trainer)[k]) for k, v in state.settings.items() if settings(trainer).get(k) != v}
    if changed:
        listed = ", ".join(f"{name}: {before!r} -> {now!r}" for name, (before, now) in changed.items())
        warnings.warn(f"resuming with other settings than the checkpoint's: {listed}.", stacklevel=2)
    if trainer.selector is not None and state.position is not None:
        trainer.selector.load(folder, state.position)
    trainer._generation = state.generation
    trainer.guard.skipped = state.skipped
    if state.calls and not changed.keys() & WINDOW_SETTINGS:
        trainer._window = Window.load(_window_file(folder, trainer), trainer.accelerator.device)
        trainer._step = state.calls


def _window_file(folder: Path, trainer: "DPPOTrainer") -> Path:
    return folder / f"dppo_window_{trainer.accelerator.process_index}.safetensors"


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a run's folder, or None: one cut off while being written is passed over."""
    folders = [p for p in Path(run_folder).glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    # transformers writes its state last: if that reads as JSON, all files before it are whole.
    complete = [p for p in folders if _reads(p / "trainer_state.json")]
    return max(complete, key=lambda p: int(p.name.removeprefix("checkpoint-")), default=None)


def _reads(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return True
