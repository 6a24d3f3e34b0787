"""Our part of a checkpoint, written before TRL's. JSON, npz and safetensors only."""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dppo.errors import CheckpointError
from dppo.files import read_json
from dppo.methods import Method
from dppo.methods.own import part_names
from dppo.settings import BATCH, DRAWS, TABLE, UPDATE, OwnSettings
from dppo.step.resumed import changed, remembered, warn_of
from dppo.trl.checkpoints.files import OUR_STATE, checkpoint_errors, content
from dppo.typed import check_fields

OF_THE_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args")
"""Settings in the saved state of the optimizer or its schedule: new values are ignored."""
GENERATING = ("chat_template", "cache_implementation", "max_tool_calling", "use_transformers", "vllm_")
"""Beginnings of fields that completions depend on."""

OF_TRL = {
    **dict.fromkeys(("seed", "reward_weights", "shuffle_dataset", "max_completion_length", "top_p", "top_k"), DRAWS),
    **dict.fromkeys(("min_p", "repetition_penalty", "generation_kwargs", "use_vllm", "remove_unused_columns"), DRAWS),
    **dict.fromkeys(("dataset", "reward_funcs", "ref_model"), DRAWS),
    # Log-probabilities of a generation in use are at the old temperature.
    **dict.fromkeys(("processes", "temperature", "num_generations", "generation_batch_size"), BATCH),
    **dict.fromkeys(("per_device_train_batch_size", "steps_per_generation", "num_iterations"), BATCH),
    **dict.fromkeys(("gradient_accumulation_steps", "router_aux_loss_coef"), BATCH),
}
"""Effect of a change of TRL's fields and of the trainer's arguments, if it is not ``UPDATE``."""
EFFECTS = OF_TRL | {each.name: TABLE[each].remembered for each in fields(OwnSettings)}
EFFECTS |= {f"method.{name}": BATCH for name in part_names(Method)}

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The part of a run's state that TRL does not save."""

    session: dict[str, Any]
    """From ``Session.save``."""
    calls: int
    """Calls of the loss since the current generation; 0 if a new one is due."""
    skipped: int
    """Optimizer steps skipped because the gradient was not finite."""
    settings: dict[str, Any]
    """From ``settings_of``. A resumed run warns of changes."""
    draw_metrics: list[Any]
    """As of ``GenerationInUse``."""
    unpruned: list[Any]
    """As of ``GenerationInUse``, each by ``dataclasses.asdict``."""
    savings: dict[str, Any]
    """``Savings`` by ``dataclasses.asdict``."""

    def __post_init__(self) -> None:
        check_fields(self, "the state of another checkpoint", calls="[0, inf)", skipped="[0, inf)")


def settings_of(trainer: Any) -> dict[str, Any]:
    """The settings that a run depends on, as JSON has them: fields of the arguments, model, data, rewards."""
    models = {"model": trainer.accelerator.unwrap_model(trainer.model), "ref_model": trainer.ref_model}
    more = {name: getattr(getattr(model, "config", None), "_name_or_path", None) for name, model in models.items()}
    more |= {"processes": trainer.accelerator.num_processes, "dataset": trainer.content}
    more |= {"reward_funcs": getattr(trainer, "reward_func_names", None)} | trainer.method_in_words
    return remembered(trainer.args, {name: value for name, value in more.items() if value is not None})


def fingerprint(*parts: np.ndarray | str) -> str:
    """A short hash of a dataset's content: identities of all rows in order, and further parts."""
    content = [each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each.tobytes() for each in parts]
    return hashlib.blake2b(b"".join(content), digest_size=6).hexdigest()


def read_state(
    folder: Path, made: Callable[[dict[str, Any]], State], *, trainer: str = "DPPOTrainer", without: str
) -> State | None:
    """The state in a checkpoint's folder, ``made`` from its JSON.

    For a checkpoint of TRL's own trainer None, with a warning that ends with ``without``: how the run goes on.
    """
    path = folder / OUR_STATE
    if not path.exists():
        warnings.warn(f"{folder} was not written by {trainer}: {without}", stacklevel=2)
        return None
    with checkpoint_errors(folder, f"{OUR_STATE} is damaged or of another version"):
        return made(read_json(path, advice=""))


def saved_settings(folder: Path) -> dict[str, Any]:
    """The settings in a checkpoint; empty without any."""
    found = (content(folder / OUR_STATE) or {}).get("settings")
    return found if isinstance(found, dict) else {}


def batch_goes_on(folder: Path, state: RunState, settings: dict[str, Any], *, new_optimizer: bool = False) -> bool:
    """True if the generation in use can go on. Warnings name changed settings."""
    differing, in_use = changed(state.settings, settings), state.calls > 0
    if in_use and "processes" in differing:
        before, now = differing["processes"]
        raise CheckpointError(f"{folder} was saved amid a generation by {before} processes, not {now}. Start {before}.")

    def effect_of(name: str) -> str:
        effect = EFFECTS.get(name, DRAWS if name.startswith(GENERATING) else UPDATE) if in_use else UPDATE
        if effect == BATCH:
            return "it holds from here, and the generation in use is rolled out again"
        return "it holds from the next generation" if effect == DRAWS else optimizer_effect(name, new_optimizer)

    warn_of(differing, effect_of)
    return in_use and not any(EFFECTS.get(name) == BATCH for name in differing)


def optimizer_effect(name: str, new_optimizer: bool) -> str:
    """The effect of a changed setting that may be in the checkpoint's own state, as a clause."""
    if name == "model":
        return "the trained weights are the checkpoint's; the new model only replaces the base of an adapter"
    if name in OF_THE_OPTIMIZER and not new_optimizer:
        return "ignored: the optimizer goes on with the checkpoint's"
    return "it holds from here"


def batch_file(folder: Path, rank: int) -> Path:
    """The file of a rank's part of the generation in use."""
    return folder / f"dppo_batch_{rank}.safetensors"
