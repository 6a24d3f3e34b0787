"""The same script with its import changed: of completions with a gradient each step trains on as many as pay.

python examples/trl_after.py Qwen/Qwen3-0.6B questions.jsonl
"""

import sys

import torch
from datasets import load_dataset

from dppo.trl import DPPOConfig as GRPOConfig
from dppo.trl import DPPOTrainer as GRPOTrainer


def right(completions, answer, **_):
    """1 where the answer's text is in the completion."""
    return [float(wanted in completion) for completion, wanted in zip(completions, answer, strict=True)]


trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=right,
    train_dataset=load_dataset("json", data_files=sys.argv[2], split="train"),
    args=GRPOConfig(
        "out",
        num_generations=4,
        per_device_train_batch_size=16,
        max_completion_length=64,
        bf16=torch.cuda.is_available(),
        max_steps=2,
    ),
)
trainer.train()
