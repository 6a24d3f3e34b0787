"""Our part of a checkpoint: where a run is among its prompts or rows, its settings, and a generation still in use.

Written before TRL writes its part, so a folder that has TRL's state has ours too. JSON, npz and safetensors only.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dppo.errors import CheckpointError, ConfigError, FileError
from dppo.files import read_json
from dppo.methods import Method
from dppo.methods.own import part_names
from dppo.settings import BATCH, DRAWS, TABLE, UPDATE, OwnSettings
from dppo.step.resumed import changed, remembered, warn_of
from dppo.trl.checkpoints.files import OUR_STATE, advice, complete_checkpoints, content
from dppo.typed import check_fields

OF_THE_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args")
"""Its saved state has these, and so has the scheduler's: new values are ignored."""
GENERATING = ("chat_template", "cache_implementation", "max_tool_calling", "use_transformers", "vllm_")
"""Fields that completions come from, by the beginnings of their names."""

OF_TRL = {
    **dict.fromkeys(("seed", "reward_weights", "shuffle_dataset", "max_completion_length", "top_p", "top_k"), DRAWS),
    **dict.fromkeys(("min_p", "repetition_penalty", "generation_kwargs", "use_vllm", "remove_unused_columns"), DRAWS),
    **dict.fromkeys(("dataset", "reward_funcs", "ref_model"), DRAWS),
    # Log-probabilities of a generation in use are at the old temperature.
    **dict.fromkeys(("processes", "temperature", "num_generations", "generation_batch_size"), BATCH),
    **dict.fromkeys(("per_device_train_batch_size", "steps_per_generation", "num_iterations"), BATCH),
    **dict.fromkeys(("gradient_accumulation_steps", "router_aux_loss_coef"), BATCH),
}
"""What of TRL's and of the trainer's a change has an effect on, where that is not ``UPDATE``."""
EFFECTS = (
    OF_TRL
    | {each.name: TABLE[each].remembered for each in fields(OwnSettings)}
    | {f"method.{name}": BATCH for name in part_names(Method)}
)


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run is, beside what TRL saves."""

    session: dict[str, Any]
    """Place among the prompts and what was learned of them, from ``Session.save``."""
    calls: int
    """Calls of the loss since the current generation, 0 where a new one is due."""
    skipped: int
    """Optimizer steps skipped for a gradient that was not finite."""
    settings: dict[str, Any]
    """What draws and batches depend on; a resumed run with other settings says so."""
    draw_metrics: list[Any]
    """Of each draw of the generation in use, for the logs."""
    unpruned: list[Any]
    """Passes of each of its optimizer steps if nothing were dropped, as ``dataclasses.asdict`` gives ``Work``."""
    savings: dict[str, Any]
    """What was left out so far."""

    def __post_init__(self) -> None:
        check_fields(self, "the state of another checkpoint")
        if min(self.calls, self.skipped) < 0:
            raise ConfigError(f"calls={self.calls}, skipped={self.skipped}: below 0")


def settings_of(trainer: Any) -> dict[str, Any]:
    """The settings that a run depends on, as JSON has them: every field that is not left out, model, data, rewards."""
    more = {
        "processes": trainer.accelerator.num_processes,
        "model": _name_of(trainer.accelerator.unwrap_model(trainer.model)),
        "ref_model": _name_of(trainer.ref_model),
        "dataset": trainer.content,
        "reward_funcs": getattr(trainer, "reward_func_names", None),
    }
    more |= getattr(trainer, "method_in_words", {})
    return remembered(trainer.args, {name: value for name, value in more.items() if value is not None})


def _name_of(model: Any) -> str | None:
    return getattr(getattr(model, "config", None), "_name_or_path", None)


def fingerprint(*parts: np.ndarray | str) -> str:
    """A short hash of the content of a dataset: identities of all rows, in their order, and what else they hold."""
    digest = hashlib.blake2b(digest_size=6)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part.tobytes())
    return digest.hexdigest()


State = TypeVar("State")


def read_state(
    folder: Path, made: Callable[[dict[str, Any]], State], *, trainer: str = "DPPOTrainer", without: str
) -> State | None:
    """What ``made`` makes of the state in a checkpoint's folder; None for a checkpoint of TRL's own trainer.

    Then a warning says ``without`` it what becomes of the run.
    """
    path = folder / OUR_STATE
    if not path.exists():
        warnings.warn(f"{folder} was not written by {trainer}: {without}", stacklevel=2)
        return None
    try:
        return made(read_json(path, advice=""))
    except (FileError, ConfigError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). {advice(folder)}") from error


def saved_settings(folder: Path) -> dict[str, Any]:
    """The settings that a checkpoint remembers; none where nothing says so."""
    found = (content(folder / OUR_STATE) or {}).get("settings")
    return found if isinstance(found, dict) else {}


def batch_goes_on(folder: Path, state: RunState, settings: dict[str, Any], *, new_optimizer: bool = False) -> bool:
    """Whether the generation that a state was saved in can go on; a warning names settings that changed."""
    differing = changed(state.settings, settings)
    if state.calls > 0 and "processes" in differing:
        before, now = differing["processes"]
        others = complete_checkpoints(folder.parent)
        others = [path for path in others if (content(path / OUR_STATE) or {}).get("calls") == 0]
        other = f", or resume from {others[-1]}, which is between two generations" if others else ""
        raise CheckpointError(
            f"{folder} was saved by {before} processes in the middle of a generation, and this run has {now}: what is "
            f"left of it cannot be dealt anew. Start {before} processes{other}."
        )
    warn_of(differing, partial(_effect, in_use=state.calls > 0, new_optimizer=new_optimizer))
    return state.calls > 0 and not any(EFFECTS.get(name) == BATCH for name in differing)


def _effect(name: str, in_use: bool, new_optimizer: bool) -> str:
    """What becomes of a changed setting."""
    generating = DRAWS if name.startswith(GENERATING) else UPDATE
    effect = EFFECTS.get(name, generating) if in_use else UPDATE
    if effect == BATCH:
        return "it holds from here, and the generation in use is rolled out again"
    return "it holds from the next generation" if effect == DRAWS else optimizer_effect(name, new_optimizer)


def optimizer_effect(name: str, new_optimizer: bool) -> str:
    """What becomes of a changed setting that the checkpoint's own state may have."""
    if name == "model":
        return "the trained weights are the checkpoint's, and only what an adapter is on is the new one's"
    if name in OF_THE_OPTIMIZER and not new_optimizer:
        return "ignored: the optimizer goes on with the checkpoint's"
    return "it holds from here"


def batch_file(folder: Path, rank: int) -> Path:
    """Where a rank's part of the generation in use is."""
    return folder / f"dppo_batch_{rank}.safetensors"
