"""Our part of a checkpoint, in verl's ``global_step_N``: the place of a run among its prompts, and their history.

It is written before verl's part, so each folder that verl resumes from has it. JSON and npz only.
"""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dppo.errors import CheckpointError, FileError
from dppo.files import read_json, write_json
from dppo.methods.own import is_own, method_named, parts_in_words
from dppo.session import Session
from dppo.step.resumed import changed, remembered, warn_of
from dppo.typed import Checked
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


@dataclass(frozen=True, kw_only=True)
class VerlState(Checked):
    """The state of a run, beside what verl saves."""

    step: int
    """``global_steps`` done: the clock of the history."""
    session: dict[str, Any]
    settings: dict[str, Any]
    """From ``settings_to_save``; a resumed run warns of those that changed."""


def settings_to_save(settings: PruningSettings, get: Get, ranks: int) -> dict[str, Any]:
    """Settings, as JSON has them, that a resumed run should share; ``ranks`` are data-parallel."""
    own = parts_in_words(method_named(settings.method)) if is_own(settings.method) else {}
    return remembered(settings, {name: get(name) for name in OF_VERL} | {"data-parallel ranks": ranks} | own)


def save(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Write our part into ``global_step_N``; the state comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    state = VerlState(step=step, session=session.save(folder), settings=settings)
    write_json(folder / STATE_FILE, asdict(state))


def load(folder: Path, session: Session, step: int, settings: dict[str, Any]) -> None:
    """Read our part of ``global_step_N``, the checkpoint after ``step``, into ``session``; warn of changed settings.

    Raises:
        CheckpointError: our part is damaged, of another step, or has prompts in flight that this trainer would lose.
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
        raise CheckpointError(
            f"{folder} has {len(flights)} prompts in flight, and this trainer requests none ahead: they would be lost. "
            f"Resume with trainer.v1.trainer_mode={NAME}_{state.settings['trainer.v1.trainer_mode']}."
        )
    session.load(folder, state.session)


def resumed_folder(step: int, trainer: Any) -> Path:
    """The folder that verl resumed from at ``step``; ``trainer`` is its section of that name."""
    if trainer.resume_mode == "resume_path":
        return Path(trainer.resume_from_path).absolute()
    return Path(trainer.default_local_dir).absolute() / f"global_step_{step}"
