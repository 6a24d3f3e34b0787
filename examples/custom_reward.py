"""Two reward functions with weights, prompts pruned by what both gave, and the records of the run.

python examples/custom_reward.py Qwen/Qwen3-0.6B questions.jsonl
"""

import sys

import torch
from datasets import load_dataset

from dppo.lab.runs.recorder import RunRecorder
from dppo.trl import DPPOConfig, DPPOTrainer


def right(completions, answer, **_):
    """1 where the answer's text is in the completion."""
    return [float(wanted in completion) for completion, wanted in zip(completions, answer, strict=True)]


def brief(completions, **_):
    """From 1 for no words to 0 for forty."""
    return [max(0.0, 1 - len(completion.split()) / 40) for completion in completions]


args = DPPOConfig(
    "out",
    reward_weights=[1.0, 0.2],
    completion_prune_rate=0.5,
    prompt_prune_rate=0.3,  # of prompts that came before: from the second epoch on
    loss_type="dr_grpo",  # its denominator is known before anything is pruned, so both levels are unbiased
    num_generations=4,
    per_device_train_batch_size=16,
    max_completion_length=64,
    bf16=torch.cuda.is_available(),
    max_steps=4,
    logging_steps=1,
)
data = load_dataset("json", data_files=sys.argv[2], split="train")
trainer = DPPOTrainer(sys.argv[1], [right, brief], args, data)
RunRecorder("out").attach(trainer)  # metrics.jsonl, prompts.jsonl: `dppo report out`
trainer.train()
