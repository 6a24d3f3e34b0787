"""Our part of a checkpoint: where a run is among its prompts, and a generation still in use.

Written before TRL writes its part, so a folder that has TRL's state has ours too. JSON, npz and safetensors only.
"""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, ConfigError, FileError
from dppo.files import read_json, write_json
from dppo.typed import check_fields

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
    "difficulty_features",
    "reward_range",
    "prune_schedule",
    "prune_until",
    "advantage_power",
    "max_rounds",
    "round_factor",
    "loss_type",
    "scale_rewards",
    "multi_objective_aggregation",
    "reward_weights",
    "beta",
    "entropy_coef",
    "shuffle_dataset",
)
"""What draws depend on, beside the number of processes."""

BATCH_SETTINGS = {
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
    """Calls of the loss since the current generation, 0 where a new one is due."""
    position: dict[str, Any] | None
    """Place among the prompts, from ``PromptSource.save``; None for a streamed dataset."""
    skipped: int
    """Optimizer steps skipped for a gradient that was not finite."""
    settings: dict[str, Any]
    """What draws and batches depend on; a resumed run with other settings says so."""

    def __post_init__(self) -> None:
        check_fields(self, "the state of another checkpoint")
        if min(self.generation, self.calls, self.skipped) < 0:
            raise ConfigError(f"generation={self.generation}, calls={self.calls}, skipped={self.skipped}: below 0")


def settings_of(args: Any, processes: int) -> dict[str, Any]:
    """The settings that decide which prompts and completions are drawn."""
    return {name: getattr(args, name) for name in SETTINGS} | {"processes": processes}


def write_state(folder: Path, state: RunState) -> None:
    """Write the state into a checkpoint's folder; the file appears complete or not at all."""
    write_json(folder / STATE_FILE, asdict(state))


def read_state(folder: Path) -> RunState | None:
    """The state in a checkpoint's folder; None, with a warning, for a checkpoint of TRL's own trainer.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        warnings.warn(
            f"{folder} was not written by DPPOTrainer: training goes on from its weights with an empty prompt history "
            "and the prompt order of a new run.",
            stacklevel=2,
        )
        return None
    try:
        return RunState(**read_json(path, advice=""))
    except (FileError, ConfigError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Resume from an earlier checkpoint folder.") from error


def batch_goes_on(state: RunState, settings: dict[str, Any]) -> bool:
    """Whether the generation that a state was saved in can go on; a warning names settings that changed."""
    changed = {k: (v, settings[k]) for k, v in state.settings.items() if settings.get(k) != v}
    if changed:
        listed = ", ".join(f"{name}: {before!r} -> {now!r}" for name, (before, now) in changed.items())
        warnings.warn(f"resuming with other settings than the checkpoint's: {listed}.", stacklevel=2)
    return state.calls > 0 and not changed.keys() & BATCH_SETTINGS


def batch_file(folder: Path, rank: int) -> Path:
    """Where a rank's part of the generation in use is."""
    return folder / f"dppo_batch_{rank}.safetensors"


def latest_checkpoint(run_folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a run's folder, or None: one cut off while being written is passed over."""
    folders = [p for p in Path(run_folder).glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    # transformers writes its state last: if that reads as JSON, all files before it are whole.
    complete = [p for p in folders if _reads(p / "trainer_state.json")]
    return max(complete, key=lambda p: int(p.name.removeprefix("checkpoint-")), default=None)


def _reads(path: Path) -> bool:
    try:
        read_json(path, advice="")
    except FileError:
        return False
    return True
