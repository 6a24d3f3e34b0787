"""Our part of a checkpoint, in verl's ``global_step_N``: where a run is among its prompts, and their history.

Written before verl writes its part and names the folder in ``latest_checkpointed_iteration.txt``, so a folder that verl
resumes from has ours. JSON and npz only.
"""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, FileError
from dppo.files import read_json, write_json
from dppo.methods.own import is_own, parts_in_words
from dppo.session import Session
from dppo.step.in_flight import Checked
from dppo.step.resumed import changed, remembered, warn_of
from dppo.verl.settings import PruningSettings

STATE_FILE = "dppo_state.json"
NAME = "dynamic_pruning"
"""Of the trainers here, in ``trainer.v1.trainer_mode``."""
ACTOR = ("ppo_mini_batch_size", "ppo_epochs", "loss_agg_mode", "loss_scale_factor", "policy_loss.loss_mode")
ACTOR += ("policy_loss.dro_beta", "use_kl_loss", "kl_loss_coef", "entropy_coeff", "clip_ratio_low", "clip_ratio_high")
ALGORITHM = ("adv_estimator", "norm_adv_by_std_in_grpo", "use_kl_in_reward", "filter_groups.enable")
OF_VERL = (
    "trainer.v1.trainer_mode",
    *(f"data.{name}" for name in ("train_batch_size", "max_response_length", "shuffle")),
    *(f"actor_rollout_ref.rollout.{name}" for name in ("n", "temperature", "calculate_log_probs")),
    *(f"actor_rollout_ref.actor.{name}" for name in (*ACTOR, "optim.lr")),
    *(f"algorithm.{name}" for name in ALGORITHM),
)
"""Options of verl that prompts and draws depend on."""


@dataclass(frozen=True, kw_only=True)
class VerlState(Checked):
    """Where a run is, beside what verl saves."""

    step: int
    """``global_steps`` done: the clock of the history."""
    session: dict[str, Any]
    """Place among the prompts and what was learned of them, from ``Session.save``."""
    settings: dict[str, Any]
    """What prompts and draws depend on; a resumed run with other settings says so."""


def settings_to_save(settings: PruningSettings, get: Callable[[str], Any], ranks: int) -> dict[str, Any]:
    """What a resumed run should have in common with the one that was saved, as JSON has it.

    ``get`` gives the value of an option by its path in verl's configuration; ``ranks`` are data-parallel.
    """
    own = parts_in_words(settings.base) if is_own(settings.method) else {}
    return remembered(settings, {name: get(name) for name in OF_VERL} | {"data-parallel ranks": ranks} | own)


def save(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Write our part into ``global_step_N``, which is made where it is not there; the state comes last.

    ``settings`` are of ``settings_to_save``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = VerlState(step=step, session=session.save(folder), settings=settings)
    write_json(folder / STATE_FILE, asdict(state))


def load(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Read our part into ``session``.

    Warnings name settings that changed, or say that the folder has no such part. ``step`` is that of verl's part,
    ``settings`` are those of this run.

    Raises:
        CheckpointError: our part is damaged, or of another step.
    """
    path = folder / STATE_FILE
    if not path.exists():
        warnings.warn(
            f"{folder} was not written with dynamic_pruning: training goes on from its weights with an empty prompt "
            "history and the prompt order of a new run.",
            stacklevel=2,
        )
        return
    try:
        state = VerlState(**read_json(path, advice=""))
    except (FileError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}). Resume from an earlier one: trainer.resume_mode=resume_path "
            "trainer.resume_from_path=.../global_step_N."
        ) from error
    if state.step != step:
        raise CheckpointError(
            f"{path} is of step {state.step}, and the folder of step {step}. Resume from a folder that was not mixed."
        )
    warn_of(changed(state.settings, settings))
    flights = (state.session.get("in_flight") or {}).get("flights")
    if flights and session.in_flight is None:
        mode = state.settings["trainer.v1.trainer_mode"]
        raise CheckpointError(
            f"{folder} has {len(flights)} prompts in flight, requested ahead, and this trainer requests none: they "
            f"would be lost. Resume with trainer.v1.trainer_mode={NAME}_{mode}."
        )
    session.load(folder, state.session)


def resumed_folder(step: int, resume_path: str | None, local_folder: str) -> Path:
    """The folder that verl has resumed from at ``step``: ``resume_path`` where ``trainer.resume_mode`` asks for it."""
    return Path(resume_path).absolute() if resume_path else Path(local_folder).absolute() / f"global_step_{step}"
