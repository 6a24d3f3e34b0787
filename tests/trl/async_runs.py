"""Scripted rollout workers for TRL's asynchronous trainer and ours, which see the same completions, and their runs.

As a script, ``async_runs.py MODEL FOLDER KIND``: ours on two ranks, with FSDP2 if ``KIND`` is ``fsdp``.
"""

import hashlib
import os
import queue
import sys
from pathlib import Path

import numpy as np
import torch
from tiny_runs import GENERATIONS, LOG_ALL, SHORT, GradientRecorder, problems
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from dppo.trl.async_grpo.attention import serve_tree_attention
from dppo.trl.async_grpo.config import DPPOAsyncConfig
from dppo.trl.async_grpo.trainer import DPPOAsyncTrainer, made_without_gpu
from dppo.trl.async_grpo.worker import RolledGroup


def rng_of(*key: object) -> np.random.Generator:
    """Random numbers of a key, the same in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def group_of(group_id: int, row: int, *, version: int = 1, flat: bool = False, forks: bool = False) -> RolledGroup:
    """The completions of a request, by its number and row alone. ``flat``: equal rewards; ``forks``: some have two
    training rows, with tokens of a tool between trained ones."""
    prompt = rng_of("prompt", row).integers(3, 31, 3 + row % 3).tolist()
    rng = rng_of(group_id, row)
    reward_G = np.ones(GENERATIONS) if flat else rng.integers(0, 2, GENERATIONS).astype(float)
    if not flat:
        reward_G[0], reward_G[1] = 0.0, 1.0
    advantage_G = (reward_G - reward_G.mean()) / (reward_G.std() + 1e-8)
    completions = []
    for number in range(GENERATIONS):
        rows = []
        for part in range(2 if forks and number % 2 else 1):
            length, before = int(rng.integers(2, 7)), [*prompt, *([9] * part)]
            mask = np.ones(length, int)
            if forks and length > 3:
                mask[1:3] = 0
            zeros = np.zeros(len(before), int)
            rows.append(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=np.array([*before, *rng.integers(3, 31, length)]),
                    completion_mask=np.concatenate([zeros, mask]),
                    old_log_probs=np.concatenate([zeros, rng.uniform(-3.5, -2.5, length) * mask]).astype(np.float32),
                    advantage=float(advantage_G[number]),
                    model_version=version,
                    group_id=group_id,
                    metrics={"reward": float(reward_G[number])},
                )
            )
        completions.append(rows)
    return RolledGroup(group_id=group_id, completions=completions, model_version=version)


class ScriptedWorker:
    """Answers each request at once with ``group_of``; ``change`` may hold groups back, drop or repeat them."""

    def __init__(self, change=lambda group, worker: [group], flat=(), **options):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        self.version, self.asked, self.options, self.flat, self.change = 0, [], options, flat, change

    def request(self, group_id, row):
        self.asked.append((group_id, row))
        group = group_of(group_id, row, version=self.version, flat=row in self.flat, **self.options)
        for each in self.change(group, self):
            self.rollout_buffer.put(each)

    def start(self):
        pass

    stop = start

    def update_model_version(self, model_version):
        self.version = model_version

    def check_health(self, stale_after_s):
        raise RuntimeError("nothing comes any more")


class StockWorker(ScriptedWorker):
    """The same groups for TRL's own trainer, row by row, in the order of the dataset."""

    def __init__(self, **options):
        super().__init__(lambda group, worker: group.samples, **options)
        for row in range(4):
            self.request(row, row)


class NoTransfer:
    """Weights that no server is sent."""

    def init_weight_transfer(self):
        pass

    pause = resume = destroy = init_weight_transfer

    def send_weights(self, iterator):
        for _ in iterator:  # of shards all ranks must go through all weights
            pass


def made(kind, config, path, folder, worker, *, data=None, peft_config=None, **options):
    settings = SHORT | dict(use_cpu=True, token_budget=0, max_staleness=2) | options
    return kind(
        path,
        args=config(str(folder), **settings),
        train_dataset=problems(8) if data is None else data,
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
        peft_config=peft_config,
    )


ONE_CALL = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
TWO_CALLS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
"""Two groups a step, in one call of the loss or in two."""


def ours(path, folder, worker=None, **options):
    options = LOG_ALL | TWO_CALLS | dict(max_steps=2, shuffle_dataset=False) | options
    return made(DPPOAsyncTrainer, DPPOAsyncConfig, path, folder, worker or ScriptedWorker(), **options)


def stock(path, folder, worker, **options):
    with made_without_gpu():
        trainer = made(AsyncGRPOTrainer, AsyncGRPOConfig, path, folder, worker, max_steps=1, **options)
    serve_tree_attention(torch.device("cpu"))
    return trainer


def gradients(trainer) -> list[dict[str, torch.Tensor]]:
    """Gradients of each step before the optimizer's, without clipping."""
    recorder, trainer.args.max_grad_norm = GradientRecorder(), 0.0
    trainer.add_callback(recorder)
    trainer.train()
    return [{name.removeprefix("module."): value for name, value in step.items()} for step in recorder.steps]


CASES = {
    "all": {},
    "uneven": {"flat": {1}, "token_budget": 24},  # more rows than calls, and an odd number of them
    "few": {"completion_prune_rate": 0.8, "flat": {0, 2, 4}},  # fewer completions than ranks, at times
    "nothing": {"flat": range(8)},
}


def on_ranks(path: str, folder: Path, ranks: int) -> dict[str, list]:
    """Gradients of each case's steps. One process plans, and each forwards as many rows."""
    found = {}
    for name, case in CASES.items():
        options = TWO_CALLS | {"per_device_train_batch_size": 4 // ranks, "completion_prune_rate": 0.0} | case
        worker = ScriptedWorker(flat=options.pop("flat", ()))
        found[name] = gradients(ours(path, folder / name, worker, max_steps=3, **options))
    return found


def main(path: str, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == "fsdp":
        from fsdp_two_ranks import choose_fsdp_on_cpus  # importing it sets the environment

        choose_fsdp_on_cpus()
    found = on_ranks(path, Path(folder) / "two", 2)
    for each in (step for steps in found.values() for step in steps):
        each.update({name: value.full_tensor() for name, value in each.items() if kind == "fsdp"})
    if int(os.environ["RANK"]) == 0:
        torch.save(found, Path(folder) / "gradients.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
