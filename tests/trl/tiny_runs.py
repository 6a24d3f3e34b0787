"""A tiny model on disk and scripted rollouts, so that TRL's trainer and ours see exactly the same completions."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback

from dppo.methods import METHODS
from dppo.trl import DPPOConfig, layouts
from dppo.trl.checkpoints.files import latest_checkpoint

WORDS = [f"w{i}" for i in range(28)]
GENERATIONS = 4
DEVICE = os.environ.get("TEST_ON", "cpu")
"""Where the runs of these tests are: ``TEST_ON=cuda`` on a machine that has a GPU."""
ON_CPU = DEVICE == "cpu"


SIZE = dict(vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=2, pad_token_id=0, eos_token_id=1)
HEADS = dict(bos_token_id=None, num_attention_heads=4, num_key_value_heads=2)


def enlarged(model):
    """The model with large random weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """A two-layer Qwen3 with a word tokenizer, saved to disk: TRL loads its reference model from there."""
    path = tmp_path_factory.mktemp("tiny")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(0)
    sizes = SIZE | HEADS | dict(head_dim=8, intermediate_size=64, tie_word_embeddings=True)
    enlarged(Qwen3ForCausalLM(Qwen3Config(**sizes))).save_pretrained(path)
    fast.save_pretrained(path)
    return str(path)


@pytest.fixture
def forwarded(monkeypatch):
    """Every row that goes through a model, and whether with a gradient."""
    rows, original = [], layouts.row_log_probs

    def record(model, row, width, **options):
        rows.append((row, torch.is_grad_enabled()))
        return original(model, row, width, **options)

    monkeypatch.setattr(layouts, "row_log_probs", record)
    return rows


def processes(count: int, script: str, *words: object) -> subprocess.CompletedProcess:
    """Run a script of this folder on so many gloo ranks. ``accelerate launch --cpu`` would start one without a word."""
    launch = ["-m", "torch.distributed.run", f"--nproc_per_node={count}", "--standalone"] if count > 1 else []
    tests = Path(__file__).parents[1]
    folders = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    environment["TEST_ON"] = "cpu"  # ranks would share a GPU
    command = [sys.executable, *launch, str(tests / "trl" / script), *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, timeout=400)


def two_processes(script: str, *words: object) -> None:
    """Run a script of this folder on two ranks, to its end."""
    done = processes(2, script, *words)
    assert done.returncode == 0, done.stderr.decode()[-4000:]


PADDED_TOO = ["rows", pytest.param("padded", marks=pytest.mark.slow)]
"""Layouts, of which one is tried with every change."""


def problems(count: int) -> Dataset:
    """``count`` distinct prompts of different lengths, with an answer column."""
    return Dataset.from_list(
        [{"prompt": " ".join(WORDS[j % 28] for j in range(i, i + 2 + i % 4)), "answer": str(i)} for i in range(count)]
    )


def scripted(prompts, trainer):
    """Completions and log-probabilities as a function of the prompt and its place in the group, nothing else."""
    tokenizer, seen = trainer.processing_class, {}
    output = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    for prompt in prompts:
        ordinal = seen[prompt] = seen.get(prompt, -1) + 1
        digest = hashlib.blake2b(f"{prompt}/{ordinal % GENERATIONS}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        length = int(rng.integers(2, 12))
        output["prompt_ids"].append(tokenizer(prompt)["input_ids"])
        output["completion_ids"].append([*rng.integers(3, 31, length).tolist(), 1])
        output["logprobs"].append(rng.uniform(-2, -0.05, length + 1).tolist())
    return output


def length_reward(prompts, completions, **_):
    """0, 1 or 2 by the completion's words: groups that are mixed and groups that are not."""
    return [float(len(text.split()) % 3) for text in completions]


def first_half_reward(prompts, completions, answer, **_):
    """As above for the first four problems, the same for all others: those have no gradient."""
    rewards = length_reward(prompts, completions)
    return [reward if int(number) < 4 else 1.0 for reward, number in zip(rewards, answer, strict=True)]


def logged(trainer, name):
    """A figure wherever it was logged."""
    return [row[name] for row in trainer.state.log_history if name in row]


SHORT = dict(
    num_generations=GENERATIONS,
    max_completion_length=16,
    max_steps=3,
    learning_rate=1e-2,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
    disable_tqdm=True,
    use_cpu=ON_CPU,
    bf16=False,
    seed=3,
    gradient_checkpointing=False,
)
"""Settings of a short run on a CPU."""
LOG_ALL = {"log_metrics": "all"}
"""A setting of our trainers alone."""
CONFIG = dict(output_dir="unused", report_to=[], use_cpu=ON_CPU, bf16=False)
"""Settings of a configuration that is not run."""

UNEVEN = dict(reward=first_half_reward, shuffle_dataset=False, max_tokens_per_row=24, loss_type="dapo")
UNEVEN |= dict(num_iterations=2, max_steps=2)
"""A run of two steps in which the second of two ranks has nothing to train on."""
ACCUMULATED = UNEVEN | {"gradient_accumulation_steps": 4, "max_tokens_per_row": 200, "num_iterations": 1}
"""The same in four calls of the loss, which need one forward pass."""


def two_generations(ranks: int = 1) -> dict:
    """Options of optimizer steps of two generations each, of which the second has no gradient anywhere."""
    seen = []

    def reward(prompts, completions, **_):
        seen.append(1)
        return length_reward(prompts, completions) if len(seen) % 2 else [1.0] * len(prompts)

    cycle = {"prompts": 16, "per_device_train_batch_size": 8 * GENERATIONS // ranks, "steps_per_generation": 1}
    return ACCUMULATED | cycle | {"gradient_accumulation_steps": 2, "reward": reward}


CUT = UNEVEN | {"loss_type": "dr_grpo", "completion_prune_rate": 0.0, "token_prune_rate": 0.4, "head_prune_rate": 0.3}
"""The same, with completions cut and tokens kept from the head."""

SHARES = dict(
    prompt_prune_rate=0.5, loss_type="grpo", steps_per_generation=2, gradient_accumulation_steps=1, max_steps=6
)
"""A run of two steps for each generation, with prompts of their own."""

ROUNDS = dict(reward=first_half_reward, shuffle_dataset=False, prompts=10, accept_bias=True, max_steps=3)
"""A run in rounds: of ten problems the first four have groups of differing rewards."""

SHARDED = dict(prompt_prune_rate=0.5, completion_prune_rate=0.5, loss_type="grpo", max_steps=4, optim="adamw_torch")
SHARDED |= dict(save_strategy="steps", save_steps=2)
"""A run under FSDP2 that is compared with one process."""


class Stop(Exception):
    """Stands in for whatever ends a process."""


class StopAfter(TrainerCallback):
    """Ends a run after a step that is not in the checkpoint it goes on from."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > self.step:
            raise Stop


class GradientRecorder(TrainerCallback):
    """Keeps a copy of every step's gradients, before the optimizer uses them."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        names = {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}
        self.steps.append({n.replace("_orig_mod.", ""): g for n, g in names.items()})


def alike(*folders) -> bool:
    """Whether the last checkpoints of two runs hold the same weights, bit for bit."""
    a, b = (load_file(latest_checkpoint(folder) / "model.safetensors") for folder in folders)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def relative_difference(left: dict, right: dict) -> float:
    """Norm of the difference of two gradients over the norm of the second."""
    assert left.keys() == right.keys() and left
    difference = sum((left[n].cpu() - right[n].cpu()).double().square().sum() for n in right).sqrt()
    return float(difference / sum(g.cpu().double().square().sum() for g in right.values()).sqrt())


def configured(**options):
    """A configuration that is not run; biased methods are allowed."""
    needs = METHODS.get(options.get("method", "grpo"), METHODS["grpo"]).advantages.from_values
    values = {"prompt_values": "values.jsonl"} if needs else {}
    return DPPOConfig(**CONFIG | {"accept_bias": True} | values | options)
