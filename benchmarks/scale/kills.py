"""Kills a training run at points spread over all of it, resumes it, and compares it with the run left alone.

python -m benchmarks.scale.kills [--points NAME,NAME] [--output benchmarks/results/kills.json]

Points: in a rollout, a backward pass, an optimizer step, and in the middle of each file that a run writes. There the
kernel itself kills the process, when the file has reached half of its length (RLIMIT_FSIZE, SIGXFSZ). Each run is a
process of its own, forked from one that has imported everything and computed nothing. The run: a small Qwen3 without
warm-up on the short embedded task, both prunings, two optimizer steps a generation, a checkpoint after each step, of
which two are kept. What must be equal: the weights, bit for bit, and every line of the records but seconds.
"""

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import safetensors.torch
import torch
from transformers import TrainerCallback

from benchmarks.shared import Record, options, write
from dppo.files import json_lines
from dppo.lab.runs import parts
from dppo.lab.runs.folder import METRICS_FILE, PROMPTS_FILE, RUN_FILE
from dppo.lab.runs.parsing import parse_fields
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

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
    "max_steps": 8,
    "learning_rate": 1e-3,
    "entropy_coef": 0.05,  # without it rewards of 0 have no gradient, and weights that stand still are always equal
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
RECORDS = (METRICS_FILE, PROMPTS_FILE)
POINTS = (
    *("rollout:1", "rollout:2", "rollout:4", "backward:1", "backward:4", "backward:7"),
    *("optimizer:2", "optimizer:5", "optimizer:8"),
    *(f"{name}:{2 + place % 5}" for place, name in enumerate(OF_CHECKPOINTS)),
    *(f"{name}:2" for name in (*RECORDS, RUN_FILE)),
)
"""Points of a kill: the action or the file that is written, and which of these, counted from 1."""


def train(folder: Path, model: Path, point: str = ":0", sizes: Mapping[str, int] | None = None) -> None:
    """Train a run, or go on with it, and be killed at a point."""
    torch.set_num_threads(1)
    run = parse_fields({**FIELDS, "model_name_or_path": str(model), "output_dir": str(folder)}, DPPOConfig)
    resume = parts.latest_checkpoint(folder) is not None
    run = replace(run, data=replace(run.data, resume=resume, overwrite=not resume))
    parts.train_with(DPPOTrainer, run, prepare=aimed(point, sizes or {}))


def aimed(point: str, sizes: Mapping[str, int]) -> Callable[[DPPOTrainer], None]:
    """Prepares a trainer to be killed at a point. It runs in a process of its own, so nothing is put back."""
    counts: dict[str, int] = {}
    aim, _, time = point.rpartition(":")

    def reach(what: str) -> None:
        counts[what] = counts.get(what, 0) + 1
        if what != aim or counts[what] != int(time):
            return
        if what not in sizes:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would raise in its place
        grown = sizes[what] * int(time) if what in RECORDS else sizes[what]
        resource.setrlimit(resource.RLIMIT_FSIZE, (grown // 2, grown // 2))

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
        before(trainer, "_generate", lambda *_: reach("rollout"))
        before(trainer.accelerator, "backward", lambda *_: reach("backward"))
        trainer.add_callback(BeforeSteps())

    # torch and safetensors open files themselves, so that no audit hook hears of it.
    for module, name in ((torch, "save"), (safetensors.torch, "serialize_file")):
        before(module, name, lambda content, path, *_: opened(path))
    sys.addaudithook(audit)
    return prepare


def before(owner: Any, name: str, first: Callable[..., object]) -> None:
    """Call something ahead of a function."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        first(*args)
        return original(*args, **kwargs)

    setattr(owner, name, call)


def signal_of(*arguments: Any) -> int:
    """The signal that ended ``train`` in a process of its own; 0 if it came to its end."""
    process = multiprocessing.get_context("fork").Process(target=train, args=arguments)
    process.start()
    process.join()
    if process.exitcode is None or process.exitcode > 0:
        raise RuntimeError("the run does not train: its error is above")
    return -process.exitcode


def difference(folder: Path, straight: Path) -> str:
    """The first difference between two runs; empty if there is none."""
    if (folder / "model.safetensors").read_bytes() != (straight / "model.safetensors").read_bytes():
        return "the weights differ"
    for name in RECORDS:
        ours, theirs = (list(records(each / name)) for each in (folder, straight))
        if len(ours) != len(theirs):
            return f"{name} has {len(ours)} lines and not {len(theirs)}"
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            for key in {**one, **other}:
                if one.get(key) != other.get(key):
                    return f"{name}, line {place + 1}: {key} is {one.get(key)!r} and not {other.get(key)!r}"
    return ""


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file without clock times, and without transformers' own mean of the loss since the resume."""
    clocks = ("time", "seconds", "_per_second", "runtime", "train_loss")
    for record in json_lines(path, advice="Run it again."):
        yield {key: value for key, value in record.items() if not any(word in key for word in clocks)}


def sizes_of(straight: Path) -> dict[str, int]:
    """Lengths of the files of a run; of records, of a line."""
    found = {path.name: path.stat().st_size for path in straight.glob("checkpoint-*/*") if path.name in OF_CHECKPOINTS}
    lines = {name: (straight / name).read_bytes().splitlines() for name in RECORDS}
    found |= {name: sum(map(len, each)) // len(each) for name, each in lines.items()}
    return found | {RUN_FILE: (straight / RUN_FILE).stat().st_size}


def outcome(point: str, folder: Path, straight: Path, model: Path) -> Record:
    """Kill and resume at a point: whether the run got there, and whether its weights and records are then equal."""
    killed = signal_of(folder, model, point, sizes_of(straight)) in (signal.SIGKILL, signal.SIGXFSZ)
    found = parts.latest_checkpoint(folder)
    signal_of(folder, model)
    wrong = difference(folder, straight) or ("" if killed else "it was not killed")
    shutil.rmtree(folder)
    resumed = "the start" if found is None else found.name
    return {"point": point, "killed": killed, "resumed_from": resumed, "equal": not wrong, "said": wrong}


def main() -> int:
    """Print a table, write JSON; 1 if a run was not killed or differs."""
    parser = options(__doc__)
    parser.add_argument("--points", help="such as rollout:1,optimizer.pt:2; all by default")
    arguments = parser.parse_args()
    rows = []
    print("| killed in | resumed from | equal |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        work, model = Path(name), Path(name, "model")
        build_model(0).save_pretrained(model)
        build_tokenizer().save_pretrained(model)
        signal_of(work / "straight", model)
        for point in arguments.points.split(",") if arguments.points else POINTS:
            rows.append(outcome(point, work / point.replace(":", "_"), work / "straight", model))
            verdict = "bit for bit" if rows[-1]["equal"] else f"**no**: {rows[-1]['said']}"
            print(f"| {point} | {rows[-1]['resumed_from']} | {verdict} |", flush=True)
    write(arguments.output, rows, seeds=[FIELDS["seed"]])
    return int(not all(row["equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
