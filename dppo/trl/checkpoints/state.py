"""Our part of a checkpoint: where a run is among its prompts, and a generation still in use.

Written before TRL writes its part, so a folder that has TRL's state has ours too. JSON, npz and safetensors only.
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, ConfigError, FileError
from dppo.files import encoded, read_json, write_json
from dppo.trl.checkpoints.files import OUR_STATE, advice, complete_checkpoints
from dppo.typed import check_fields

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
    "prompt_values",
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

OF_THE_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Its saved state has these, and so has the scheduler's: new values are ignored."""

OF_THE_UPDATE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_completion_length",
    "mask_truncated_completions",
    "epsilon",
    "epsilon_high",
    "delta",
    "importance_sampling_level",
    "top_entropy_quantile",
    "max_grad_norm",
    "optim",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_train_epochs",
    "bf16",
    "fp16",
)
"""What completions and steps depend on, beside the draws: new values hold from the resume on."""

OF_THE_DRAWS = {*SETTINGS, "max_completion_length", "top_p", "top_k", "min_p", "repetition_penalty"} - {
    *("loss_type", "entropy_coef")
}
"""What has been settled for a generation in use: prompts, completions, advantages, draws."""

BATCH_SETTINGS = {
    "processes",
    "temperature",
    "beta",
    "num_generations",
    "generation_batch_size",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "num_iterations",
}
"""With one of these changed, a generation in use cannot go on: it is rolled out again. Its log-probabilities of before
are at the old temperature, and without a KL term it has none of the reference."""


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
    draw_figures: list[Any] = field(default_factory=list)
    """Of each draw of the generation in use, for the logs; of checkpoints of earlier versions none."""
    evidence: dict[str, Any] | None = None
    """Completions with a gradient of the last steps of a streamed dataset; of any other they are in ``position``."""
    listed: bool = False
    """Whether its files are listed at the end; those of earlier versions are not."""

    def __post_init__(self) -> None:
        check_fields(self, "the state of another checkpoint")
        if min(self.generation, self.calls, self.skipped) < 0:
            raise ConfigError(f"generation={self.generation}, calls={self.calls}, skipped={self.skipped}: below 0")


def settings_of(
    args: Any, processes: int, names: Iterable[str] = (*SETTINGS, *OF_THE_OPTIMIZER, *OF_THE_UPDATE)
) -> dict[str, Any]:
    """The settings that a run depends on, as JSON has them."""
    found = {name: getattr(args, name) for name in names} | {"processes": processes}
    return json.loads(encoded(found, default=str))


def write_state(folder: Path, state: RunState) -> None:
    """Write the state into a checkpoint's folder; the file appears complete or not at all."""
    write_json(folder / OUR_STATE, asdict(state))


def read_state(folder: Path) -> RunState | None:
    """The state in a checkpoint's folder; None, with a warning, for a checkpoint of TRL's own trainer.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = folder / OUR_STATE
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
        raise CheckpointError(f"{path} is damaged ({error}). {advice(folder)}") from error


def saved_by(folder: Path) -> int | None:
    """How many processes wrote a checkpoint; None where nothing says so."""
    try:
        return read_json(folder / OUR_STATE, advice="")["settings"]["processes"]
    except (FileError, KeyError, TypeError):
        return None


def batch_goes_on(folder: Path, state: RunState, settings: dict[str, Any], *, new_optimizer: bool = False) -> bool:
    """Whether the generation that a state was saved in can go on; a warning names settings that changed.

    Args:
        folder: of the checkpoint.
        state: in it.
        settings: of the run that resumes.
        new_optimizer: whether the checkpoint's optimizer was left behind, and its settings with it.

    Raises:
        CheckpointError: it was saved in the middle of a generation that other processes share.
    """
    changed = changed_settings(state.settings, settings)
    goes_on = state.calls > 0 and not changed.keys() & BATCH_SETTINGS
    if state.calls > 0 and "processes" in changed:
        before, now = changed["processes"]
        others = [path for path in complete_checkpoints(folder.parent) if _between_generations(path)]
        other = f", or resume from {others[-1]}, which is between two generations" if others else ""
        raise CheckpointError(
            f"{folder} was saved by {before} processes in the middle of a generation, and this run has {now}: what is "
            f"left of it cannot be dealt anew. Start {before} processes{other}."
        )
    warn_of(changed, calls=state.calls, new_optimizer=new_optimizer)
    return goes_on


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of a checkpoint that a run has with another value, and both values."""
    return {name: (value, now[name]) for name, value in before.items() if name in now and now[name] != value}


def warn_of(changed: Mapping[str, tuple[Any, Any]], *, new_optimizer: bool, calls: int = 0) -> None:
    """Warn of each changed setting, with what it does.

    Args:
        changed: of ``changed_settings``.
        new_optimizer: whether the checkpoint's optimizer was left behind, and its settings with it.
        calls: of the loss since the generation in use; 0 where there is none.
    """
    for name, (before, now) in changed.items():
        effect = _effect(name, calls, new_optimizer)
        warnings.warn(f"resumed with {name}: {before!r} -> {now!r}; {effect}", stacklevel=3)


def _effect(name: str, calls: int, new_optimizer: bool) -> str:
    """What a changed setting does."""
    if name in OF_THE_OPTIMIZER and not new_optimizer:
        return "ignored: the optimizer goes on with the checkpoint's"
    if name in BATCH_SETTINGS and calls:
        return "it holds from here, and the generation in use is rolled out again"
    return "it holds from the next generation" if calls and name in OF_THE_DRAWS else "it holds from here"


def _between_generations(folder: Path) -> bool:
    try:
        return read_json(folder / OUR_STATE, advice="").get("calls") == 0
    except FileError:
        return False


def batch_file(folder: Path, rank: int) -> Path:
    """Where a rank's part of the generation in use is."""
    return folder / f"dppo_batch_{rank}.safetensors"
