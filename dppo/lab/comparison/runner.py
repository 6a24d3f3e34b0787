"""Trains every run of a comparison in turn, in one process, and resumes a comparison that was stopped."""

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from transformers import TrainerCallback, set_seed
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.errors import FileError
from dppo.files import write_json, write_text
from dppo.lab.comparison.contestants import Contestant
from dppo.lab.comparison.curves import CONFIG_FILE, RESULTS_FILE
from dppo.lab.comparison.plan import Comparison, check_folder, open_folder
from dppo.lab.comparison.results import result_of, summarise
from dppo.lab.runs.folder import FORMAT, RUN_FILE, TOTALS
from dppo.lab.runs.follow import Follow
from dppo.lab.runs.parsing import AnyRun
from dppo.lab.runs.parts import prepare_model, train_with
from dppo.lab.runs.reader import read_record
from dppo.lab.runs.watch import watch
from dppo.trl.checkpoints.files import latest_checkpoint, sole_writer_of
from dppo.trl.generation import prompts_read_once
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.trl.metrics import wall

MODEL, SPENT = "model_name_or_path", TOTALS["seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a comparison, for a progress display."""

    stage: Literal["kept", "warm-up", "train", "finished", "failed"]
    """``kept``: the run had finished before."""
    name: str
    """The contestant."""
    seed: int
    number: int
    """Which run this is, from 1."""
    runs: int
    """How many there are."""
    step: float = 0.0
    """Optimizer steps done; of a warm-up the share done."""
    steps: float = 1.0
    """Of how many."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures of the last log."""
    text: str = ""
    """The message of a failure."""


Tell = Callable[..., None]
"""Called with the fields of an ``Event`` that changed."""


def run_comparison(
    comparison: Comparison, progress: Callable[[Event], None] = lambda event: None, *, overwrite: bool = False
) -> dict[str, Any]:
    """Train the unfinished runs in turn, write ``results.json`` after each, and return its content.

    A run that raises is recorded as failed, and the others go on. Stopping loses only what the run in progress did
    since its last checkpoint: the same call resumes from there. With ``overwrite`` runs whose fields have changed are
    made anew and not refused. A folder that another process compares in is refused.
    """
    comparison.check()
    check_folder(comparison.folder)
    with sole_writer_of(comparison.folder):
        open_folder(comparison, overwrite=overwrite)
        order = comparison.order()
        for number, (seed, contestant) in enumerate(order, 1):
            event = Event(stage="train", name=contestant.name, seed=seed, number=number, runs=len(order))
            if result_of(comparison, contestant, seed).finished:
                progress(replace(event, stage="kept"))
                continue

            def tell(event: Event = event, **news: Any) -> None:
                progress(replace(event, **news))

            make_start(comparison, contestant, seed, tell)
            train_one(comparison, contestant, seed, tell)
            write_json(comparison.folder / RESULTS_FILE, summarise(comparison))
        results = summarise(comparison)
        write_json(comparison.folder / RESULTS_FILE, results)
        return results


def make_start(comparison: Comparison, contestant: Contestant, seed: int, tell: Tell) -> None:
    """Make the model that all runs of a seed start from, once, if the configuration asks for one from scratch."""
    folder = comparison.start_folder(seed)
    if comparison.scratch and not folder.exists():
        run = contestant.parse({**comparison.fields(contestant, seed), MODEL: comparison.config[MODEL]})
        prepare_model(run, lambda done, loss: tell(stage="warm-up", step=done, figures={"loss": loss}), folder)


def train_one(comparison: Comparison, contestant: Contestant, seed: int, tell: Tell) -> None:
    """Train one run, from its newest checkpoint or from the start; recorded as failed if it raises."""
    folder, fields = comparison.run_folder(contestant, seed), comparison.fields(contestant, seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG_FILE, yaml.safe_dump(fields, sort_keys=False))
    try:
        train_alone(contestant, contestant.parse(fields), tell, comparison.seconds)
    except Exception as error:  # whatever it is, the other runs go on
        text = f"{type(error).__name__}: {error}"
        record = {"format": FORMAT, "method": contestant.method, "seed": seed}
        with suppress(FileError):  # the failure to record may be a full disk
            record |= read_record(folder / RUN_FILE)  # none is there if building the trainer failed
        write_json(folder / RUN_FILE, {**record, "status": "failed", "error": text})
        tell(stage="failed", text=text)
    else:
        tell(stage="finished")
    finally:
        leave_nothing()


def train_alone(contestant: Contestant, run: AnyRun, tell: Tell, seconds: float | None) -> None:
    """Train one run as in its own process; ``tell`` is called at each step, ``seconds`` are those of ``Comparison``."""
    folder = Path(run.training.output_dir or "")
    # TRL replays its first epoch after a resume: its own run starts again instead.
    going = not contestant.stock and latest_checkpoint(folder) is not None
    run = replace(run, data=replace(run.data, resume=going, overwrite=not going))
    run.training.run_name = f"{contestant.name}_seed_{run.training.seed}"
    set_seed(run.training.seed)

    def follow(trainer: GRPOTrainer) -> None:
        def told(step: float, steps: float, figures: Mapping[str, float]) -> None:
            if seconds is not None and math.isfinite(seconds):
                step, steps = min(figures.get(SPENT, 0.0) / seconds, 1.0), 1.0
            tell(figures=figures, step=step, steps=steps)

        Follow.instead(trainer, told)
        if contestant.stock:  # ours does so by itself: decoding is the same for all
            watch(trainer, generate_turn=partial(reading_prompts_once, trainer))
        if seconds is not None:
            trainer.add_callback(StopAfter(seconds))

    kind: type[GRPOTrainer] = GRPOTrainer if contestant.stock else DPPOTrainer
    # What a run prints is kept out of the progress display of the comparison.
    with (folder / "output.txt").open("a") as printed, redirect_stdout(printed):
        train_with(kind, run, prepare=follow, now=wall if seconds is None else time.process_time)


def reading_prompts_once(trainer: GRPOTrainer, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """TRL's generation of a batch, in which transformers reads prompts as for our trainer."""
    with prompts_read_once(trainer):
        return generate(*args, **kwargs)


class StopAfter(TrainerCallback):
    """Ends training at the first log after so many seconds of it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Called by ``Trainer`` with each record of figures, once ``RunRecorder`` has put the totals into it."""
        control.should_training_stop |= (logs or {}).get(SPENT, 0.0) >= self._seconds


def leave_nothing() -> None:
    """Free a run's memory, and finish its loggers, or the next run would be logged into it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    for name in ("wandb", "trackio"):
        logger = sys.modules.get(name)
        if logger is not None:
            with suppress(RuntimeError):  # there was no run to end
                logger.finish()
