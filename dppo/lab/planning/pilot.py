"""A pilot: a few prompts rolled out and trained on by the run's own trainer and engine.

The weights stay as they are: the learning rate is 0. Half of the prompts make up a step. All are rolled out once, and
again with half of both levels pruned, and once more unpruned, so that steps of two sizes are timed.
"""

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from dppo.lab.planning.observed import Observed, observed_run
from dppo.lab.planning.records import check_pilot
from dppo.lab.runs.follow import Follow
from dppo.lab.runs.parsing import parse_fields
from dppo.lab.runs.parts import build_trainer, prepare_model
from dppo.lab.runs.reader import read_run
from dppo.lab.runs.recorder import RunRecorder
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer

GENERATIONS, PRUNED, RATE = 6, 3.5, 0.5
"""Two whole ones, of which the first warms up and is not timed; two pruned ones, at this rate; two whole ones."""
LEFT_OUT = (
    *("max_rounds", "round_factor", "sampling_design", "completion_budget", "history_half_life", "method"),
    *("prompt_values", "prune_floor", "logging_strategy", "top_entropy_quantile"),
    *("steps_per_generation", "eval_benchmarks", "eval_steps", "save_steps", "processes"),
    *("lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("resume", "resume_from_checkpoint", "eval_on_start", "push_to_hub", "log_completions_hub_repo"),
)
"""Fields that only some methods take, while a pilot is of ``dppo``, and others of no use: it publishes nothing."""


def run_pilot(
    fields: Mapping[str, Any],
    prompts: int,
    *,
    now: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], None] = lambda text: None,
) -> Observed:
    """Groups and timed steps of a pilot of ``prompts`` prompts of a configuration for ``dppo train``.

    ``prompts`` is an even number >= 4, at most those of the training set; ``now`` is the clock, ``time.process_time``
    if other work runs on the machine.
    """
    check_pilot(prompts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Neither printed lines nor warnings belong in the table of a plan.
        with (folder / "output.txt").open("w") as printed, redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = parse_fields(pilot_fields(fields, prompts, folder / "run"), DPPOConfig)
            progress("preparing the model")
            model = prepare_model(run, folder=folder / "start")
            trainer = build_trainer(run, model, DPPOTrainer, prompts)
            RunRecorder(folder / "run", now=now).attach(trainer)
            Follow.instead(trainer, lambda step, steps, _: progress(f"pilot, step {step:.0f} of {steps:.0f}"))
            trainer.train()
        return observed_run(read_run(folder / "run"))


def pilot_fields(fields: Mapping[str, Any], prompts: int, folder: Path) -> dict[str, Any]:
    """The fields of a pilot of a configuration."""
    given = {name: value for name, value in fields.items() if name not in LEFT_OUT}
    completions = prompts // 2 * int(fields.get("num_generations", 8))
    at_once = math.gcd(completions, int(fields.get("per_device_train_batch_size", 8)))
    passes = int(fields.get("num_iterations", 1))
    return given | {
        "output_dir": str(folder),
        "per_device_train_batch_size": at_once,
        "generation_batch_size": completions,
        "gradient_accumulation_steps": completions // at_once,
        "num_iterations": passes,
        "max_steps": GENERATIONS * passes,
        "logging_steps": passes,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "method": "dppo",
        "completion_prune_rate": RATE,
        "prompt_prune_rate": RATE,
        "prune_schedule": "stop",
        "prune_until": PRUNED / GENERATIONS,
        "token_prune_rate": 0.0,
        "head_prune_rate": 0.0,
        "prompt_mode": "thin",
        "overwrite": True,
    }
