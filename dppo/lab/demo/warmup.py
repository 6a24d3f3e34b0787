"""Supervised warm-up of a small policy on given completions, so that reinforcement learning has a start."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.errors import raise_problems
from dppo.lab.demo.task import ArithmeticTask, demonstration, draw_problem
from dppo.rng import Purpose, generator
from dppo.verification.tiny_tokenizer import PAD, TOKENS, encode_questions

BATCH_TOKENS = 512
"""Most tokens in a batch of demonstrations, padding and questions included."""
POOL = 1024
"""Within so many demonstrations they are sorted by length, so batches need little padding."""
MUON_RATE, MUON_MOMENTUM, MUON_DECAY = 0.02, 0.95, 0.01
"""For the matrices inside the layers."""
ADAM_RATE, ADAM_BETAS = 3e-3, (0.9, 0.98)
"""For embeddings and norms."""
RISE_STEPS, LAST_RATE, CLIP_NORM = 20, 0.05, 1.0
"""Steps of linear warm-up of the rate, share of it at the end of the linear decay, largest gradient norm."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of ``a X + b (X X^T) X + c (X X^T)^2 X``, the steepest at singular values near 0."""
ITERATIONS, SMALLEST_NORM = 5, 1e-7
Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of the completion to learn."""


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: ArithmeticTask,
    *,
    seed: int,
    steps: int,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train the policy in place on demonstrations of the task's teacher, with the loss on completions only.

    Levels are drawn with weight ``level ** -0.5``, and questions are never held out. The result is a function of the
    seed, up to rounding, which depends on the machine and the number of threads. The policy is then in evaluation
    mode. ``on_step`` gets the number of steps done and the loss, in nats per completion token.
    """
    raise_problems("warm_up", [f"steps={steps} must be >= 1, for example steps=900."] if steps < 1 else [])
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    optimizers: tuple[torch.optim.Optimizer, ...] = (
        Muon(matrices, lr=MUON_RATE, momentum=MUON_MOMENTUM, weight_decay=MUON_DECAY),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=ADAM_BETAS, weight_decay=0.0),
    )
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    batches = _batches(tokenizer, task, generator(seed, Purpose.WARM_UP))
    model.train()
    for step, (token_BT, label_BT) in enumerate(islice(batches, steps), 1):
        rate_share = min(step / RISE_STEPS, LAST_RATE + (1 - LAST_RATE) * (1 - (step - 1) / steps))
        loss = mean_loss(model, token_BT.to(model.device), label_BT.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_share
            optimizer.step()
            optimizer.zero_grad()
        if on_step is not None:
            on_step(step, loss.item())
    model.eval()


def _batches(
    tokenizer: PreTrainedTokenizerFast, task: ArithmeticTask, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of demonstrations of similar length."""
    weights = np.array([level**-0.5 for level in task.levels])
    weights /= weights.sum()
    while True:
        levels = rng.choice(task.levels, POOL, p=weights)
        problems = []
        for level in levels.tolist():
            # Where the middle band is looked up, half of those of its levels are.
            table = task.table if task.table and level in task.middle and rng.random() < 0.5 else ()
            problems.append(draw_problem(level, rng, held_out=False, largest_total=task.largest_total, table=table))
        texts = [demonstration(problem, task.teacher, rng) + str(tokenizer.eos_token) for problem in problems]
        prompts = encode_questions(tokenizer, [problem.question for problem in problems])
        yield from _bucketed(list(zip(prompts, tokenizer(texts)["input_ids"], strict=True)), rng)


def orthogonalise(matrix: Tensor) -> Tensor:
    """The matrix with singular values of about 0.7 to 1.2; those near 0 are moved less far.

    Source: Jordan et al. (2024), Muon: the quintic Newton-Schulz iteration.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T  # so that X X^T is the smaller product
    x = wide / wide.norm().clamp_min(SMALLEST_NORM)  # the largest singular value is then at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum: ``torch.optim.Muon`` in the dtype of its matrices; few CPUs have its bfloat16.

    A matrix of A rows and B columns takes steps of ``lr * sqrt(max(1, A / B))``. ``momentum``, in [0, 1), is that of
    Nesterov's method. With each step matrices shrink by the share ``lr * weight_decay``.

    Source: Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks.
    """

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step along ``.grad``, for matrices that have one. ``closure`` is not used."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                mean = self.state[matrix].setdefault("mean", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - momentum)
                update = orthogonalise(matrix.grad.lerp(mean, momentum))
                matrix.mul_(1 - lr * group["weight_decay"])
                matrix.add_(update, alpha=-lr * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def mean_loss(model: Qwen3ForCausalLM, token_BT: Tensor, label_BT: Tensor) -> Tensor:
    """Mean negative log-likelihood of the labelled tokens, in nats. Logits are computed where there is a label.

    ``token_BT`` are padded on the right; ``label_BT`` is the token to predict after each, or -1 for none.
    """
    labelled_BT = label_BT >= 0
    hidden_BTD = model.model(input_ids=token_BT, use_cache=False).last_hidden_state
    return F.cross_entropy(model.lm_head(hidden_BTD[labelled_BT]), label_BT[labelled_BT])


def _bucketed(examples: Sequence[Example], rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples once, in batches of similar length and random order: (B, T) tokens, and labels of ``mean_loss``."""
    batches: list[list[Example]] = []
    for prompt, completion in sorted(examples, key=lambda example: sum(map(len, example))):
        if not batches or (len(prompt) + len(completion)) * (len(batches[-1]) + 1) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append((prompt, completion))
    for index in rng.permutation(len(batches)):
        tokens = [torch.tensor(prompt + completion) for prompt, completion in batches[index]]
        labels = [torch.tensor([-1] * (len(prompt) - 1) + completion + [-1]) for prompt, completion in batches[index]]
        # Padding is on the right, where causal attention never looks.
        yield pad_sequence(tokens, True, TOKENS.index(PAD)), pad_sequence(labels, True, -1)
