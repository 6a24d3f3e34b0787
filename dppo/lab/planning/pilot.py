"""A pilot: a few prompts rolled out and trained on by the run's own trainer and engine, and one update as TRL pads it.

The weights stay as they are: the learning rate is 0. Half of the prompts make up a step. All are rolled out once, and
again with half of both levels pruned, and once more unpruned, so that steps of two sizes are timed. Then TRL's own
trainer takes steps on the same completions, which cost it no rollout.
"""

import contextlib
import gc
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.lab.planning.observed import Observed, observed_run, timed_steps
from dppo.lab.planning.records import check_pilot
from dppo.lab.runs.follow import Follow
from dppo.lab.runs.parsing import TRAINING_OURS, Run, parse_fields
from dppo.lab.runs.parts import build_trainer, prepare_model
from dppo.lab.runs.reader import read_run
from dppo.lab.runs.recorder import RunRecorder
from dppo.step import StepPlan
from dppo.trl.batch import Padded
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer

GENERATIONS = 6
"""Of a pilot: two whole ones, two pruned ones, two whole ones; the first warms up and is not timed."""
PRUNED = 3.5
"""Of these, how many may be pruned, the one of warm-up included."""
RATE = 0.5
"""Rate of the pruned ones at either level."""
STOCK_STEPS = 3
"""Of TRL's own trainer, the first not timed."""
LEFT_OUT = (
    *("max_rounds", "round_factor", "sampling_design", "completion_budget", "history_half_life", "method"),
    *("prompt_values", "prune_floor", "logging_strategy"),
    *("steps_per_generation", "eval_benchmarks", "eval_steps", "save_steps", "processes"),
    *("lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("resume", "resume_from_checkpoint", "eval_on_start", "push_to_hub", "log_completions_hub_repo"),
)
"""Fields that only some methods take, while a pilot is of ``dppo``, and others of no use: it publishes nothing."""
Rollouts = dict[str, list[Any]]


def run_pilot(
    fields: Mapping[str, Any],
    prompts: int,
    *,
    now: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], None] = lambda text: None,
) -> Observed:
    """Groups and timed steps of a pilot of ``prompts`` prompts of a configuration for ``dppo train``.

    ``prompts`` is an even number >= 4, at most those of the training set; ``now`` is the clock, ``time.process_time``
    where other work runs on the machine.
    """
    check_pilot(prompts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = (pilot_fields(fields, prompts, folder / part, stock=part == "trl") for part in ("dppo", "trl"))
        with quietly(folder / "output.txt"):
            run = parse_fields(ours, DPPOConfig)
            progress("preparing the model")
            model = prepare_model(run, folder=folder / "start")
            kept = _trained(run, model, prompts, now, progress)
            progress("one update as TRL pads it")
            stock = _stock(parse_fields(theirs, GRPOConfig), model, prompts, kept, now)
        seen = observed_run(read_run(folder / "dppo"))
        timed = tuple(replace(each, generated=0.0, completions=0.0, rollout=0.0, reward=0.0) for each in stock)
        notes = tuple(note for note in seen.notes if "one layout" not in note)
        return replace(seen, timed=(*seen.timed, *timed), notes=notes)


def pilot_fields(fields: Mapping[str, Any], prompts: int, folder: Path, *, stock: bool) -> dict[str, Any]:
    """The fields of a pilot of a configuration, for TRL's own trainer (``stock``) or ours."""
    given = {name: value for name, value in fields.items() if name not in LEFT_OUT}
    group = int(fields.get("num_generations", 8))
    completions = prompts // 2 * group
    at_once = math.gcd(completions, int(fields.get("per_device_train_batch_size", 8)))
    passes = 1 if stock else int(fields.get("num_iterations", 1))
    steps = STOCK_STEPS if stock else GENERATIONS
    common = {
        "output_dir": str(folder),
        "per_device_train_batch_size": at_once,
        "generation_batch_size": completions,
        "gradient_accumulation_steps": completions // at_once,
        "num_iterations": passes,
        "max_steps": steps * passes,
        "logging_steps": passes,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if stock:
        given = {name: value for name, value in given.items() if name not in TRAINING_OURS}
        return given | common | {"use_vllm": False}
    return given | common | {
        "method": "dppo",
        "completion_prune_rate": RATE,
        "prompt_prune_rate": RATE,
        "prune_schedule": "stop",
        "prune_until": PRUNED / steps,
        "token_prune_rate": 0.0,
        "head_prune_rate": 0.0,
        "prompt_mode": "thin",
        "record_completions": 10**6,
        "overwrite": True,
    }  # fmt: skip


class Keeper(RunRecorder):
    """Records a pilot, and keeps its last whole generation."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self.kept: Rollouts = {}

    def generation(self, plan: StepPlan, batch: Padded) -> None:
        """Called by the trainer, after the draws."""
        super().generation(plan, batch)
        if bool(plan.prompts.draw.keep_N.all()):
            pairs = ((batch.prompt_ids, batch.prompt_mask), (batch.completion_ids, batch.completion_mask))
            prompts, completions = (
                [ids[mask.bool()].tolist() for ids, mask in zip(*pair, strict=True)] for pair in pairs
            )
            logprobs = [[0.0] * len(tokens) for tokens in completions]
            self.kept = {"prompt_ids": prompts, "completion_ids": completions, "logprobs": logprobs}


def _trained(run: Run, model: str, prompts: int, now: Callable[[], float], progress: Callable[[str], None]) -> Rollouts:
    """Take the pilot's steps, recorded in its folder; its last whole generation."""
    trainer = build_trainer(run, model, DPPOTrainer, prompts)
    about = {"model": run.model.model_name_or_path, "dataset": run.data.dataset_path or run.data.dataset_name}
    keeper = Keeper(run.training.output_dir or "", task=about, now=now)
    keeper.attach(trainer)
    Follow.instead(trainer, lambda step, steps, _: progress(f"pilot, step {step:.0f} of {steps:.0f}"))
    trainer.train()
    kept = keeper.kept
    del trainer, keeper
    gc.collect()
    return kept


def _stock(run: Run[GRPOConfig], model: str, prompts: int, kept: Rollouts, now: Callable[[], float]) -> Any:
    """Timed steps of TRL's own trainer on completions that were made before."""
    trainer = build_trainer(run, model, GRPOTrainer, prompts)

    def replayed(asked: list[Any], *_: Any, **__: Any) -> Rollouts:
        return {name: values[: len(asked)] for name, values in kept.items()}

    trainer.rollout_func = replayed
    RunRecorder(run.training.output_dir or "", completions=0, now=now).attach(trainer)
    Follow.instead(trainer, lambda *_: None)
    trainer.train()
    return timed_steps(read_run(Path(run.training.output_dir or "")))


@contextlib.contextmanager
def quietly(path: Path) -> Any:
    """Send what trainers print to a file, and drop their warnings: neither belongs into the table of a plan."""
    with path.open("w") as printed, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
