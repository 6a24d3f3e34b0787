"""The parts of a run, each loaded and checked: output folder, data, model, trainer; ``rewards`` has what it calls."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from accelerate import PartialState
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import get_peft_config, get_quantization_config

from dppo.errors import CheckpointError, ConfigError, DPPOError, first_line
from dppo.lab.demo.scratch import SCRATCH, OnStep, prepare_embedded
from dppo.lab.runs.benchmarks import benchmark_callback, load_benchmarks
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.folder import RECORDS
from dppo.lab.runs.models import load_tokenizer, model_of, positions
from dppo.lab.runs.parsing import AnyRun
from dppo.lab.runs.preflight import check_run
from dppo.lab.runs.recorder import RunRecorder
from dppo.lab.runs.rewards import load_rewards, load_rollouts
from dppo.rng import Purpose, generator
from dppo.trl.checkpoints.files import LOCK_FILE, STATE, WRITER_FILE, asked_for, latest_checkpoint
from dppo.trl.checkpoints.resume import sole_writers_of
from dppo.trl.metrics import wall

Kind = TypeVar("Kind", bound=GRPOTrainer)
START_FOLDER = "start"
"""The place of a model from scratch within the output folder, where a resumed run finds it."""


def output_checkpoint(run: AnyRun) -> Path | None:
    """The checkpoint to resume from, or None for a fresh run. A folder in use needs ``resume`` or ``overwrite``.

    One that ``resume_from_checkpoint`` names is in that folder, or the run goes on from it in a new one.
    """
    folder, asked = Path(run.training.output_dir or ""), asked_for(run.training.resume_from_checkpoint)
    named, newest = None if asked in (None, True) else Path(str(asked)), latest_checkpoint(folder)
    if named is not None and not (named / STATE).exists():
        works = newest or folder / "checkpoint-100"
        raise CheckpointError(f"resume_from_checkpoint={named} is no checkpoint. Name one such as {works}, or --resume")
    resume = run.data.resume or asked is True
    if resume and newest is None and named is None:
        raise CheckpointError(f"output_dir={folder} has no complete checkpoint. Start again with --overwrite.")
    if found := newest if resume else named if within(named, folder) else None:
        return found
    held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if held - {f"{START_FOLDER}.unfinished", LOCK_FILE, WRITER_FILE} and not run.data.overwrite:
        go_on = "--resume to go on, or " if newest else ""
        raise ConfigError(f"output_dir={folder} is not empty. Add {go_on}--overwrite to train into it.")
    model = Path(run.model.model_name_or_path or "")
    if any(model.resolve().is_relative_to(old.resolve()) for old in cleared(folder)):
        raise ConfigError(f"--overwrite would remove model_name_or_path={model}. Write --output_dir {folder}-2")
    return named


def within(checkpoint: Path | None, folder: Path) -> bool:
    """True if a run goes on in its checkpoint's own folder."""
    return checkpoint is not None and checkpoint.resolve().parent == folder.resolve()


def cleared(folder: Path) -> list[Path]:
    """The checkpoints and the model from scratch of an earlier run in ``folder``."""
    return [*folder.glob("checkpoint-*"), folder / START_FOLDER]


def clear(old: Iterable[Path]) -> None:
    """Remove files and folders of an earlier run, when every process has come here."""
    PartialState().wait_for_everyone()
    for path in old if PartialState().is_main_process else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    PartialState().wait_for_everyone()


def prepare_model(run: AnyRun, progress: OnStep | None = None, folder: Path | None = None) -> str:
    """The path or hub name of the run's model, or the folder of a model made from scratch.

    A model from scratch is warmed up once, by the main process, and found again on resume: in ``folder``, by default
    ``start`` within the output folder.
    """
    name = model_of(run)
    if not name.startswith(SCRATCH):
        return name
    folder = folder or Path(run.training.output_dir or "") / START_FOLDER
    with PartialState().main_process_first():
        if not folder.exists():
            task = TASKS[name.removeprefix(SCRATCH)]
            prepare_embedded(folder, seed=run.training.seed, task=task, on_step=progress)
    return str(folder)


def build_trainer(run: AnyRun, model: str, kind: type[Kind], prompts: int | None = None) -> Kind:
    """The trainer of a run, ours or TRL's own, with its data and rewards; ``model`` is from ``prepare_model``.

    ``prompts`` limits the training set to that many, drawn by the run's seed.
    """
    tokenizer, adapters = load_tokenizer(run, model), get_peft_config(run.model)
    if tokenizer.chat_template is None:
        PartialState().print(f"dppo | {model} has no chat template: it is given the prompts as they are, as plain text")
    dataset = load_dataset(run, tokenizer=tokenizer, room=positions(model, run))
    if prompts is not None:
        if prompts > len(dataset):
            raise ConfigError(f"{prompts} prompts are more than the {len(dataset)} of the training set")
        order = generator(run.training.seed, Purpose.CHECK, 6).permutation(len(dataset))
        dataset = dataset.select(order[:prompts].tolist())
    held_out = run.training.eval_strategy != "no"
    given = run.training.model_init_kwargs
    run.training.model_init_kwargs = {
        "revision": run.model.model_revision,
        "attn_implementation": run.model.attn_implementation,
        "dtype": run.model.dtype,
        **(given if isinstance(given, dict) else {}),
    }
    try:
        return kind(
            model,
            reward_funcs=cast(Any, load_rewards(run, dataset)),
            args=run.training,
            train_dataset=dataset,
            rollout_func=load_rollouts(run),
            eval_dataset=load_dataset(run, tokenizer=tokenizer, held_out=True) if held_out else None,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(run.model),
            peft_config=adapters,
        )
    except ValueError as error:
        if adapters is None or isinstance(error, DPPOError):
            raise
        advice = "Write lora_target_modules: all-linear"
        raise ConfigError(
            f"lora_target_modules={run.model.lora_target_modules}: {first_line(error)} {advice}"
        ) from error


def train_with(
    kind: type[Kind],
    run: AnyRun,
    progress: OnStep | None = None,
    prepare: Callable[[Kind], None] | None = None,
    now: Callable[[], float] = wall,
) -> Kind:
    """Train a run from its start or a checkpoint to its end; the model and its records are then in ``output_dir``.

    ``kind`` is our trainer or TRL's own, ``prepare`` is called with it before it trains, and ``now`` is the clock of
    its seconds, as for ``RunRecorder``.
    """
    launched = run.training.world_size
    if run.data.processes not in (None, launched):
        start = f"accelerate launch --num_processes {run.data.processes} -m dppo.lab.cli.main train CONFIG.yaml"
        raise ConfigError(f"processes={run.data.processes}, but this launch has {launched}. Start it with: {start}")
    check_run(run)
    folder = Path(run.training.output_dir or "")
    with sole_writers_of(folder):
        checkpoint = output_checkpoint(run)
        benchmarks = load_benchmarks(run)
        old = [] if within(checkpoint, folder) else [*cleared(folder), *(folder / name for name in RECORDS)]
        if model_of(run).startswith(SCRATCH):  # a new one is made at its place
            clear(path for path in old if path.name == START_FOLDER)
            old = [path for path in old if path.name != START_FOLDER]
        trainer = build_trainer(run, prepare_model(run, progress), kind)
        clear(old)  # now that this run can begin
        about = {"model": run.model.model_name_or_path, "dataset": run.data.dataset_path or run.data.dataset_name}
        recorder = RunRecorder(folder, task=about, now=now).attach(trainer)
        if benchmarks:
            trainer.add_callback(benchmark_callback(run, trainer, benchmarks, recorder.paused))
        if prepare is not None:
            prepare(trainer)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        trainer.save_model(str(folder))
        return trainer
