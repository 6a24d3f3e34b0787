"""The run that ``kills.py`` kills, where it is killed, and what kills it there."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import safetensors.torch
import torch
from transformers import TrainerCallback

from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo_lab.runs import parts
from dppo_lab.runs.folder import COMPLETIONS_FILE, METRICS_FILE, PROMPTS_FILE, RUN_FILE
from dppo_lab.runs.parsing import parse_fields

STEPS = 8
FIELDS: dict[str, Any] = {
    "dataset_name": "embedded_quick",
    "embedded_problems": 12,
    "reward_funcs": ["embedded"],
    "rollout_func": "embedded",
    "method": "dppo_history",
    "prompt_prune_rate": 0.3,
    "completion_prune_rate": 0.5,
    "loss_type": "dr_grpo",
    "num_generations": 2,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 16,
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_steps": 1,
    "save_total_limit": 2,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "seed": 3,
}
OF_CHECKPOINTS = (
    *("model.safetensors", "config.json", "tokenizer_config.json", "training_args.bin"),
    *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"),
    *("dppo_state.json", "dppo_history.npz", "dppo_batch_0.safetensors", "dppo_files.json"),
)
RECORDS = (METRICS_FILE, PROMPTS_FILE, COMPLETIONS_FILE)
RANK, DISK = "rank", "disk"


POINTS = (
    *("rollout:1", "rollout:2", "rollout:4", "backward:1", "backward:4", "backward:7"),
    *("optimizer:2", "optimizer:5", "optimizer:8"),
    *(f"{name}:{2 + place % 5}" for place, name in enumerate(OF_CHECKPOINTS)),
    *(f"{name}:2" for name in (*RECORDS, RUN_FILE)),
    *("rank:3", "rank:6", "disk:30", "disk:60", "disk:120", "disk:150", "disk:230", "disk:290"),
)
"""Where a run is killed: what it does or which file it writes, and which of these, counted from 1.

For ``RANK`` it is the optimizer step, for ``DISK`` the percent of a checkpoint. Files of a generation in use, and of
its records, are written at every second step.
"""


def parsed(point: str) -> tuple[str, int]:
    """What happens at a point, and which of these it is."""
    what, _, time = point.rpartition(":")
    return what, int(time)


def run_fields(folder: Path, model: Path, ranks: int = 1) -> dict[str, Any]:
    """The fields of the run."""
    own = {"per_device_train_batch_size": FIELDS["per_device_train_batch_size"] // ranks}
    return {**FIELDS, **own, "model_name_or_path": str(model), "output_dir": str(folder)}


def train(fields: Mapping[str, Any], point: str | None = None, sizes: Mapping[str, int] | None = None) -> None:
    """Train a run, or go on with it, and be killed at a point."""
    torch.set_num_threads(1)
    run = parse_fields(dict(fields), DPPOConfig)
    resume = parts.latest_checkpoint(fields["output_dir"]) is not None
    run = replace(run, data=replace(run.data, resume=resume, overwrite=not resume))
    parts.train_with(DPPOTrainer, run, prepare=aimed(point, sizes or {}))


def aimed(point: str | None, sizes: Mapping[str, int]) -> Callable[[DPPOTrainer], None]:
    """What prepares a trainer to be killed at a point. It runs in a separate process, so nothing is put back."""
    counts: dict[str, int] = {}
    aim, time = ("", 0) if point is None else parsed(point)
    aim = "optimizer" if aim == RANK else aim

    def reach(what: str) -> None:
        counts[what] = counts.get(what, 0) + 1
        if what == aim and counts[what] == time:
            if what in sizes:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would raise in its place
                grown = sizes[what] * time if what in RECORDS else sizes[what]
                resource.setrlimit(resource.RLIMIT_FSIZE, (grown // 2, grown // 2))
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def opened(path: Any) -> None:
        name = Path(os.fsdecode(path)).name
        for known in sizes:
            if name == known or name.startswith(f".{known}."):
                reach(known)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            opened(arguments[0])

    class BeforeSteps(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            reach("optimizer")

    def prepare(trainer: DPPOTrainer) -> None:
        wrapped(trainer, "_generate", lambda: reach("rollout"))
        wrapped(trainer.accelerator, "backward", lambda: reach("backward"))
        trainer.add_callback(BeforeSteps())

    # torch and safetensors open files themselves, so that no audit hook hears of it.
    for module, name in ((torch, "save"), (safetensors.torch, "serialize_file")):
        original = getattr(module, name)

        def saving(content: Any, path: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike):  # ranks send each other objects through torch.save
                opened(path)
            return original(content, path, *args, **kwargs)

        setattr(module, name, saving)
    sys.addaudithook(audit)
    return prepare


def wrapped(owner: Any, name: str, before: Callable[[], None]) -> None:
    """Call something ahead of a method."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        return original(*args, **kwargs)

    setattr(owner, name, call)
