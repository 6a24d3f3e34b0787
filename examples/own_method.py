"""A method of your own is a value: here a score that likes short answers, proved unbiased and then trained with.

python examples/own_method.py Qwen/Qwen3-0.6B questions.jsonl
"""

import sys
from dataclasses import replace

import torch
from datasets import load_dataset
from torch import Tensor

from dppo.methods import METHODS
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.types import Completions
from dppo.verification.tiny import exact_bias


def advantage_over_length(completions: Completions) -> Tensor:
    """``abs(A) / (1 + tokens)``: (N,), a guess at the size of each gradient. A poor one costs variance, never bias."""
    return completions.advantage_N.abs() / (1 + completions.tokens_N)


base = METHODS["dppo"].with_rates(completion=0.5)
shorter = replace(base, name="dppo_shorter", completions=replace(base.completions, score=advantage_over_length))
print(shorter.describe())
print(f"relative bias over every outcome of a small problem: {exact_bias(shorter):.1e}")
assert not shorter.biases() and exact_bias(shorter) < 1e-12


def right(completions, answer, **_):
    """1 where the answer's text is in the completion."""
    return [float(wanted in completion) for completion, wanted in zip(completions, answer, strict=True)]


settings = DPPOConfig(
    "out",
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=64,
    bf16=torch.cuda.is_available(),
    max_steps=2,
)
data = load_dataset("json", data_files=sys.argv[2], split="train")
trainer = DPPOTrainer(sys.argv[1], right, settings, data, method=shorter)
trainer.train()
