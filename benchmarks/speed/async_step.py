"""Seconds of the trainer's side of asynchronous GRPO: TRL's trainer and ours on the same groups, in turns.

python -m benchmarks.speed.async_step [--quick] [--output benchmarks/results/async.json]

A step is 64 completions in groups of 8, of which a share has equal rewards. Generation is scripted and costs nothing:
what is measured is planning, forward, backward and the optimizer. On a CPU both trainers attend by the same kernel.
"""

import contextlib
import io
import queue
import sys
import tempfile
import time
from functools import cache
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from benchmarks.shared import Record, in_turns, options, spread, write
from dppo.trl import DPPOAsyncConfig, DPPOAsyncTrainer
from dppo.trl.async_grpo.attention import serve_tree_attention
from dppo.trl.async_grpo.trainer import made_without_gpu
from dppo.trl.async_grpo.worker import RolledGroup
from dppo.verification.tiny_tokenizer import build_tokenizer

GROUP, GROUPS, CALLS = 8, 8, 4
PROMPT, SHORTEST, LONGEST = 64, 48, 160
"""Tokens of a prompt, and of the shortest and the longest completion."""
FLAT_SHARES = {0.6: (5, 5, 4, 5, 5), 0.8: (6, 7, 6, 6, 7)}
"""By share: flat groups of each of the steps, of 8, on average that share of them."""
METHODS = {"exact": {"method": "grpo"}, "default": {"method": "dppo"}}


def group(number: int, row: int, flat: bool) -> RolledGroup:
    """A group with a pass rate of 1 in 2, or one with equal rewards."""
    rng = np.random.default_rng([number, row])
    prompt = rng.integers(3, 30, PROMPT)
    rewards = np.ones(GROUP) if flat else np.arange(GROUP) % 2
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    samples = []
    for reward, advantage in zip(rewards.tolist(), advantages.tolist(), strict=True):
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        samples.append(
            RolloutSample(
                prompt=[],
                completion=[],
                input_ids=np.concatenate([prompt, rng.integers(3, 30, length)]),
                completion_mask=np.repeat([0, 1], [PROMPT, length]),
                old_log_probs=np.concatenate([np.zeros(PROMPT), rng.uniform(-4, -3, length)]).astype(np.float32),
                advantage=advantage,
                model_version=0,
                group_id=number,
                metrics={"reward": reward},
            )
        )
    return RolledGroup(group_id=number, completions=[[sample] for sample in samples], model_version=0)


class Scripted:
    """Groups of a share of equal rewards: whole for our trainer, sample by sample for TRL's."""

    def __init__(self, flat: list[int], *, whole: bool) -> None:
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        self.flat, self.version = flat, 0
        if not whole:
            for number in range(GROUPS * (len(flat) + 1)):
                for sample in self.made(number, number).samples:
                    self.rollout_buffer.put(sample)

    def made(self, number: int, row: int) -> RolledGroup:
        flat = self.flat[(number // GROUPS) % len(self.flat)]
        made = group(number, row, number % GROUPS < flat)
        made.model_version = self.version
        return made

    def request(self, group_id: int, row: int) -> None:
        self.rollout_buffer.put(self.made(group_id, row))

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("the script has ended")


class NoTransfer:
    """Weights that no server is sent."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


class Clock(TrainerCallback):
    """Processor seconds from the end of one step to that of the next."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.process_time())


@cache
def model_folder() -> str:
    """A model of 7 million parameters with random weights, and the embedded task's tokenizer."""
    folder = tempfile.mkdtemp()
    tokenizer: Any = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def seconds(flat: list[int], method: dict[str, Any] | None) -> float:
    """Mean CPU seconds of a step of TRL's trainer (None) or of ours."""
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": GROUP * GROUPS // CALLS,
        "gradient_accumulation_steps": CALLS, "num_generations": GROUP, "max_completion_length": LONGEST,
        "max_steps": len(flat), "token_budget": 0, "max_staleness": 1000, "save_strategy": "no", "report_to": "none",
        "gradient_checkpointing": False, "disable_tqdm": True, "bf16": torch.cuda.is_available(),
    }  # fmt: skip
    rows = Dataset.from_list([{"prompt": f"{i}"} for i in range(GROUPS * len(flat))])
    worker: Any = Scripted(flat, whole=method is not None)
    clock, more = Clock(), {"train_dataset": rows, "rollout_worker": worker, "weight_transfer": NoTransfer()}
    with contextlib.redirect_stdout(io.StringIO()), made_without_gpu():
        if method is None:
            trainer: Any = AsyncGRPOTrainer(model_folder(), args=AsyncGRPOConfig(**common), **more)
            serve_tree_attention(trainer.accelerator.device)
        else:
            args = DPPOAsyncConfig(**common | {"max_staleness": 0}, shuffle_dataset=False, **method)
            trainer = DPPOAsyncTrainer(model_folder(), args=args, **more)
        trainer.add_callback(clock)
        trainer.train()
    return (clock.ends[-1] - clock.ends[0]) / len(flat)


def main() -> int:
    """Measure, print and write."""
    parser = options(__doc__, quick="one repetition of one step")
    given = parser.parse_args()
    repetitions = 1 if given.quick else 5
    rows: list[Record] = []
    ratios: Record = {}
    for share, flat in FLAT_SHARES.items():
        steps = list(flat[:1] if given.quick else flat)
        runs = {"trl": lambda steps=steps: seconds(steps, None)}
        runs |= {name: lambda steps=steps, method=method: seconds(steps, method) for name, method in METHODS.items()}
        seconds(steps[:1], None)  # warm up
        found = in_turns(runs, repetitions)
        rows += [{"flat_share": share, "trainer": name, **spread(each, "cpu_s_")} for name, each in found.items()]
        ratios[f"{share:g}"] = {
            name: spread(np.array(found["trl"]) / np.array(found[name]), "ratio_") for name in METHODS
        }
    for row in rows:
        print(f"{row['flat_share']:.0%} flat  {row['trainer']:8} {row['cpu_s_median']:7.2f} CPU s a step")
    for share, found in ratios.items():
        print(f"{share}: " + ", ".join(f"{name} {each['ratio_median']:.2f} times" for name, each in found.items()))
    write(given.output, rows, [0], trainer_seconds=ratios)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
