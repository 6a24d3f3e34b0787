"""Supervised warm-up of the embedded policy on imperfect demonstrations, so that reinforcement learning has a start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.demo.task import Task, demonstration, draw_problem
from dppo.demo.tokenizer import PAD, TOKENS, encode_prompts
from dppo.errors import report as raise_problems
from dppo.rng import Purpose, generator

MUON_RATE, MUON_MOMENTUM, MUON_DECAY = 0.02, 0.95, 0.01
"""For the matrices inside the layers. Source: Jordan et al. (2024), as in ``torch.optim.Muon``."""
ADAM_RATE, ADAM_BETAS = 3e-3, (0.9, 0.98)
"""For embeddings and norms."""
RISE_STEPS, LAST_RATE, CLIP_NORM = 20, 0.05, 1.0
"""Steps of linear warm-up of the rate, share of it left at the end of the linear decay, largest gradient norm."""
BATCH_TOKENS = 512
"""Most tokens in a batch, padding and questions included."""
POOL = 1024
"""Demonstrations are sorted by length, to fill batches without padding, within pools of this many."""


@dataclass(frozen=True, slots=True)
class _Example:
    prompt: list[int]
    completion: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.completion)


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    *,
    seed: int,
    steps: int,
    report: Callable[[int, float], None] | None = None,
) -> None:
    """Train the policy in place on demonstrations of the task's teacher, with the loss on completions only.

    Levels are drawn with weight ``level ** -0.5``, questions from the training side of ``task.is_held_out``. The result
    is a function of the seed, up to rounding, which depends on the machine and on the number of threads.

    Args:
        model: the policy; it is left in evaluation mode.
        tokenizer: the one the policy was built for.
        task: levels and teacher.
        seed: the run's seed, >= 0.
        steps: optimizer steps, >= 1.
        report: called after each step with the number of steps done and the loss, in nats per completion token.

    Raises:
        ConfigError: if ``steps`` is below 1.
    """
    raise_problems("warm_up", [f"steps={steps} must be >= 1, for example steps=450."] if steps < 1 else [])
    optimizers = _optimizers(model)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    model.train()
    batches = _batches(tokenizer, task, generator(seed, Purpose.WARM_UP))
    for step, (token_BT, label_BT) in enumerate(islice(batches, steps)):
        share = min((step + 1) / RISE_STEPS, LAST_RATE + (1 - LAST_RATE) * (steps - step) / steps)
        loss = _loss(model, token_BT.to(model.device), label_BT.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        if report is not None:
            report(step + 1, loss.item())
    model.eval()


def _optimizers(model: Qwen3ForCausalLM) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for everything else."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    return (
        torch.optim.Muon(matrices, lr=MUON_RATE, momentum=MUON_MOMENTUM, weight_decay=MUON_DECAY),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=ADAM_BETAS, weight_decay=0.0),
    )


def _loss(model: Qwen3ForCausalLM, token_BT: Tensor, label_BT: Tensor) -> Tensor:
    """Mean negative log-likelihood of the labelled tokens, in nats. Logits are computed where there is a label."""
    labelled_BT = label_BT >= 0
    hidden_BTH = model.model(input_ids=token_BT, use_cache=False).last_hidden_state
    return F.cross_entropy(model.lm_head(hidden_BTH[labelled_BT]), label_BT[labelled_BT])


def _batches(
    tokenizer: PreTrainedTokenizerFast, task: Task, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of demonstrations of similar length: (B, T) tokens, and the next token, or -1 where untrained."""
    weights = np.array([level**-0.5 for level in task.levels])
    weights /= weights.sum()
    while True:
        examples = _examples(tokenizer, task, rng.choice(task.levels, POOL, p=weights), rng)
        examples.sort(key=lambda example: example.length)
        batches: list[list[_Example]] = [[]]
        for example in examples:
            if example.length * (len(batches[-1]) + 1) > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(example)
        for index in rng.permutation(len(batches)):
            yield _padded(batches[index], TOKENS.index(PAD))


def _examples(
    tokenizer: PreTrainedTokenizerFast, task: Task, levels: np.ndarray, rng: np.random.Generator
) -> list[_Example]:
    """One demonstration per level given."""
    problems = [draw_problem(int(k), rng, held_out=False, largest_total=task.largest_total) for k in levels]
    texts = [demonstration(problem, task.teacher, rng) + str(tokenizer.eos_token) for problem in problems]
    prompts = encode_prompts(tokenizer, [problem.question for problem in problems])
    return [_Example(*pair) for pair in zip(prompts, tokenizer(texts)["input_ids"], strict=True)]


def _padded(examples: list[_Example], pad: int) -> tuple[Tensor, Tensor]:
    """Right-padded tokens and labels; causal attention never looks at the padding."""
    width = max(example.length for example in examples)
    token_BT = torch.full((len(examples), width), pad)
    label_BT = torch.full((len(examples), width), -1)
    for row, example in enumerate(examples):
        token_BT[row, : example.length] = torch.tensor(example.prompt + example.completion)
        label_BT[row, len(example.prompt) - 1 : example.length - 1] = torch.tensor(example.completion)
    return token_BT, label_BT
