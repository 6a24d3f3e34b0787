"""Small runs of both trainers with a recorder, and what they left behind."""

import json

from tiny_runs import GENERATIONS, LOG_ALL, SHORT, length_reward, problems, scripted
from trl import GRPOConfig, GRPOTrainer

from dppo.lab.runs.recorder import RunRecorder
from dppo.trl import DPPOConfig, DPPOTrainer

PROMPTS, ROWS = 4, 8


def make(path, folder, *, ours=True, recorded=True, reward=length_reward, callbacks=(), **options):
    """A trainer of three steps and its recorder, None where nothing is recorded."""
    settings = SHORT | dict(output_dir=str(folder), per_device_train_batch_size=PROMPTS * GENERATIONS)
    settings |= {"max_completion_length": 12} | options
    if ours:
        settings = {"prompt_prune_rate": 0.5, "completion_prune_rate": 0.5, "loss_type": "dr_grpo"} | settings
        settings = LOG_ALL | {"rollout_cost": 1.0} | settings  # no test depends on a clock
    trainer = (DPPOTrainer if ours else GRPOTrainer)(
        model=path,
        reward_funcs=reward,
        args=(DPPOConfig if ours else GRPOConfig)(**settings),
        train_dataset=problems(ROWS),
        eval_dataset=problems(ROWS) if "eval_strategy" in options else None,
        callbacks=[*callbacks],
        rollout_func=scripted,
    )
    recorder = RunRecorder(folder).attach(trainer) if recorded else None
    return trainer, recorder


def lines(folder, name):
    """The records of a file, each line of which must be JSON."""
    return [json.loads(line) for line in (folder / name).read_bytes().splitlines()]


def run_file(folder):
    return json.loads((folder / "run.json").read_text())
