"""Our part of a checkpoint: the session, the savings, and the generation in use, which goes on after a resume."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dppo.files import write_json
from dppo.step import StepPlan
from dppo.step.prompts import HISTORY_FILE
from dppo.trl.batch import RankBatch
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import RunState, batch_file, batch_goes_on, read_state, settings_of
from dppo.trl.grpo.savings import Savings
from dppo.types import Work


@dataclass(frozen=True, kw_only=True)
class GenerationInUse:
    """The generation that is being trained on."""

    batch: RankBatch
    """This rank's part."""
    plan: StepPlan | None
    """Of all ranks; None after a resume within the generation: the batch has its weights."""
    draw_metrics: Sequence[Mapping[str, float]]
    """Of each draw, for the logs."""
    unpruned: Sequence[Work]
    """Passes of each optimizer step if nothing were dropped, on this rank."""


def save_run(trainer: Any, folder: Path) -> None:
    """Write the state of a ``DPPOTrainer``, and each rank's generation in use."""
    folder.mkdir(parents=True, exist_ok=True)
    calls, rank = trainer.calls % trainer.schedule.length, trainer.accelerator.process_index
    in_use: GenerationInUse | None = trainer.in_use if calls else None
    if in_use is not None:
        in_use.batch.save(batch_file(folder, rank))
    if not trainer.args.should_save:
        return
    state = RunState(
        session=trainer.session.save(folder),
        calls=calls,
        savings=asdict(trainer.savings),
        skipped=trainer.guard.skipped,
        settings=settings_of(trainer),
        draw_metrics=[] if in_use is None else [dict(each) for each in in_use.draw_metrics],
        unpruned=[] if in_use is None else [asdict(each) for each in in_use.unpruned],
    )
    write_json(folder / OUR_STATE, asdict(state))


def load_run(trainer: Any, folder: Path) -> None:
    """Put a ``DPPOTrainer`` at the place of a checkpoint, also within a generation.

    Warnings name changed settings; if they change batches, the generation in use is rolled out again.

    Raises:
        CheckpointError: a file is damaged or missing, or of another dataset or number of processes.
    """
    start = "training goes on from its weights with an empty prompt history and the prompt order of a new run."
    state = read_state(folder, lambda found: RunState(**found), without=start)
    if state is None:
        return
    lost = any("optimizer" in part for part in trainer.lacking)
    goes_on = batch_goes_on(folder, state, settings_of(trainer), new_optimizer=lost)
    trainer.session.load(folder, state.session, history=HISTORY_FILE not in trainer.lacking)
    trainer.meter.savings, trainer.meter.accounted = Savings.of_saved(state.savings), trainer.session.number
    trainer.guard.skipped = state.skipped
    ranks = range(trainer.accelerator.num_processes)
    if goes_on and not any(batch_file(folder, rank).name in trainer.lacking for rank in ranks):
        file = batch_file(folder, trainer.accelerator.process_index)
        trainer.in_use = GenerationInUse(
            batch=RankBatch.load(file, trainer.accelerator.device),
            plan=None,
            draw_metrics=[{k: math.nan if v is None else v for k, v in each.items()} for each in state.draw_metrics],
            unpruned=[Work(**each) for each in state.unpruned],
        )
        trainer.calls = state.calls
