"""Fields and words of ``dppo train`` for a run that takes seconds on a CPU, and a reward that it can learn from."""

import json

import torch

from dppo.lab.runs.parts import train_with
from dppo.trl import DPPOTrainer

SMALL = {"use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 4, "per_device_train_batch_size": 16}
SMALL |= {"max_completion_length": 8, "gradient_checkpointing": False}
TWO_STEPS = {"max_steps": 2, "embedded_problems": 4, "num_generations": 4, "per_device_train_batch_size": 8}
TWO_STEPS |= {"eval_benchmark_limit": 3, "max_completion_length": 8, "warmup_steps": 0, "save_steps": 1}
EMBEDDED = {"dataset_name": "embedded_quick", "eval_benchmarks": ["embedded_quick"], "rollout_func": "embedded"}


def small_words(folder, *more, model="scratch:embedded", dataset="embedded"):
    """A small run into ``folder``; further words win."""
    named = {"model_name_or_path": model, "dataset_name": dataset, "output_dir": folder, **SMALL, "disable_tqdm": True}
    return [*(word for name, value in named.items() for word in (f"--{name}", str(value))), *more]


def lines_of(path):
    """The JSON values of a file, one per line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, records):
    """Write one JSON value per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def equal(left, right):
    """True if all weights of ``right`` are those of ``left``, bit by bit."""
    return all(torch.equal(left[name], right[name]) for name in right)


def train(run):
    """Train a run with our trainer."""
    return train_with(DPPOTrainer, run)


def odd_length(completions, **columns):
    """0, 1 or 2 by length: something that an untrained policy can learn from."""
    return [float(len(completion[-1]["content"]) % 3) for completion in completions]
