"""Our part of a checkpoint, in verl's ``global_step_N``: the place of a run among its prompts, and their history.

It is written before verl's part, so each folder that verl resumes from has it. JSON and npz only.
"""

import warnings
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, FileError
from dppo.files import read_json, sealed, unsealed, write_json
from dppo.methods.own import is_own, method_named, parts_in_words
from dppo.session import Session
from dppo.step.resumed import changed, remembered, warn_of
from dppo.verl.settings import PruningSettings
from dppo.verl.support import ACTOR, ROLLOUT, Get

STATE_FILE = "dppo_state.json"
NAME = "dynamic_pruning"
"""The trainers here, in ``trainer.v1.trainer_mode``."""
SECTIONS = {
    "trainer.v1": "trainer_mode",
    "data": "train_batch_size max_response_length shuffle",
    ROLLOUT: "n temperature calculate_log_probs",
    ACTOR: "ppo_mini_batch_size ppo_epochs loss_agg_mode loss_scale_factor policy_loss.loss_mode policy_loss.dro_beta "
    "use_kl_loss kl_loss_coef entropy_coeff clip_ratio_low clip_ratio_high optim.lr",
    "algorithm": "adv_estimator norm_adv_by_std_in_grpo use_kl_in_reward filter_groups.enable",
}
OF_VERL = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names.split()]
"""Options of verl that prompts and draws depend on."""


def settings_to_save(settings: PruningSettings, get: Get, ranks: int) -> dict[str, Any]:
    """Settings, as JSON has them, that a resumed run should share; ``ranks`` are data-parallel."""
    own = parts_in_words(method_named(settings.method)) if is_own(settings.method) else {}
    return remembered(settings, {name: get(name) for name in OF_VERL} | {"data-parallel ranks": ranks} | own)


def save(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Write our part into ``global_step_N``; the state comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STATE_FILE, sealed({"step": step, "session": session.save(folder), "settings": settings}))


def load(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Read our part of the checkpoint after ``step`` into ``session``, and warn of changed settings.

    Raise ``CheckpointError`` if it is damaged, of another step, or has prompts in flight that would be lost.
    """
    path = folder / STATE_FILE
    if not path.exists():
        warnings.warn(
            f"{folder} was not written with dynamic_pruning: training resumes from its weights, with an empty prompt "
            "history and the prompt order of a new run.",
            stacklevel=2,
        )
        return
    try:
        state = unsealed(read_json(path, advice=""))
    except (FileError, ValueError) as error:
        earlier = "trainer.resume_mode=resume_path trainer.resume_from_path=.../global_step_N"
        raise CheckpointError(f"{path} is damaged ({error}). Resume from an earlier one: {earlier}.") from error
    if (of_step := state["step"]) != step:
        mixed = f"{path} is of step {of_step}, and the folder of step {step}"
        raise CheckpointError(f"{mixed}. Resume from a folder that was not mixed.")
    warn_of(changed(state["settings"], settings))
    flights = (state["session"]["in_flight"] or {}).get("flights")
    if flights and session.in_flight is None:
        lost = (
            f"{folder} has {len(flights)} prompts in flight, and this trainer requests none ahead: they would be lost"
        )
        mode = f"{NAME}_{state['settings']['trainer.v1.trainer_mode']}"
        raise CheckpointError(f"{lost}. Resume with trainer.v1.trainer_mode={mode}.")
    session.load(folder, state["session"])


def resumed_folder(step: int, trainer: Any) -> Path:
    """The folder that verl resumed from at ``step``; ``trainer`` is its section of that name."""
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path).absolute()
    return Path(trainer.default_local_dir).absolute() / f"global_step_{step}"
