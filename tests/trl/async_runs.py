"""Scripted rollout workers for TRL's asynchronous trainer and ours: both see the same completions."""

import hashlib
import queue

import numpy as np
import torch
from tiny_runs import GENERATIONS, LOG_ALL, GradientRecorder, problems
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


def group_of(
    group_id: int, row: int, *, version: int = 1, seed: int = 0, flat: bool = False, forks: bool = False
) -> RolledGroup:
    """The completions of a request, by its number and row alone. ``flat``: equal rewards; ``forks``: some have two
    training rows, with tokens of a tool between trained ones."""
    prompt = rng_of("prompt", row).integers(3, 31, 3 + row % 3).tolist()
    rng = rng_of(seed, group_id, row)
    reward_G = np.ones(GENERATIONS) if flat else rng.integers(0, 2, GENERATIONS).astype(float)
    if not flat:
        reward_G[0], reward_G[1] = 0.0, 1.0
    advantage_G = (reward_G - reward_G.mean()) / (reward_G.std() + 1e-8)
    completions = []
    for number in range(GENERATIONS):
        rows = []
        for part in range(2 if forks and number % 2 else 1):
            length = int(rng.integers(2, 7))
            tail = rng.integers(3, 31, length).tolist()
            mask = [1] * length
            if forks and length > 3:
                mask[1:3] = [0, 0]
            rows.append(
                RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=np.array([*prompt, *([9] * part), *tail]),
                    completion_mask=np.array([0] * (len(prompt) + part) + mask),
                    old_log_probs=np.concatenate(
                        [np.zeros(len(prompt) + part), rng.uniform(-3.5, -2.5, length) * np.array(mask)]
                    ).astype(np.float32),
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

    def __init__(self, change=None, flat=lambda row: False, **options):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        self.version, self.asked, self.options, self.flat = 0, [], options, flat
        self.change = change or (lambda group, worker: [group])

    def request(self, group_id, row):
        self.asked.append((group_id, row))
        group = group_of(group_id, row, version=self.version, flat=self.flat(row), **self.options)
        for each in self.change(group, self):
            self.rollout_buffer.put(each)

    def start(self):
        pass

    def stop(self):
        pass

    def update_model_version(self, model_version):
        self.version = model_version

    def check_health(self, stale_after_s):
        raise RuntimeError("nothing comes any more")


class StockWorker(ScriptedWorker):
    """The same groups for TRL's own trainer, row by row, in the order of the dataset."""

    def __init__(self, rows, **options):
        super().__init__(**options)
        for group_id, row in enumerate(rows):
            self.request(group_id, row)
        groups = [self.rollout_buffer.get() for _ in rows]
        for group in groups:
            for sample in group.samples:
                self.rollout_buffer.put(sample)


class NoTransfer:
    """Weights that no server is sent."""

    def init_weight_transfer(self):
        pass

    def pause(self):
        pass

    def send_weights(self, iterator):
        for _ in iterator:  # of shards all ranks must go through all weights
            pass

    def resume(self):
        pass

    def destroy(self):
        pass


STOCK = {
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "steps",
    "num_generations": GENERATIONS,
    "learning_rate": 1e-2,
    "gradient_checkpointing": False,
    "token_budget": 0,
    "max_completion_length": 16,
    "max_staleness": 2,
    "disable_tqdm": True,
}


def ours(path, folder, worker=None, rows=8, peft_config=None, **options):
    """Our trainer on scripted rollouts: two groups a step, in two calls of the loss."""
    settings = STOCK | {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
        "shuffle_dataset": False,
        **LOG_ALL,
        **options,
    }
    worker = worker or ScriptedWorker()
    return DPPOAsyncTrainer(
        path,
        args=DPPOAsyncConfig(str(folder), **settings),
        train_dataset=problems(rows),
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
        peft_config=peft_config,
    )


def stock(path, folder, worker, rows=8, **options):
    settings = STOCK | {"per_device_train_batch_size": 8, "max_steps": 1, **options}
    with made_without_gpu():
        trainer = AsyncGRPOTrainer(
            path,
            args=AsyncGRPOConfig(str(folder), **settings),
            train_dataset=problems(rows),
            rollout_worker=worker,
            weight_transfer=NoTransfer(),
        )
    serve_tree_attention(torch.device("cpu"))
    return trainer


def gradients(trainer) -> list[dict[str, torch.Tensor]]:
    """Gradients of each step before the optimizer's, without clipping."""
    recorder, trainer.args.max_grad_norm = GradientRecorder(), 0.0
    trainer.add_callback(recorder)
    trainer.train()
    return [{name.removeprefix("module."): value for name, value in step.items()} for step in recorder.steps]
