"""Supervised warm-up of the embedded policy on imperfect demonstrations, so that reinforcement learning has a start."""

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.errors import raise_problems
from dppo.rng import Purpose, generator
from dppo.verification.tiny_tokenizer import PAD, TOKENS, encode_questions
from dppo_lab.demo.supervised import Example, bucketed, fit
from dppo_lab.demo.task import Task, demonstration, draw_problem

BATCH_TOKENS = 512
"""Most tokens in a batch, padding and questions included."""
POOL = 1024
"""Demonstrations are sorted by length, to fill batches without padding, within pools of this many."""


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    *,
    seed: int,
    steps: int,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train the policy in place on demonstrations of the task's teacher, with the loss on completions only.

    Levels are drawn with weight ``level ** -0.5``, questions from the training side of ``task.is_held_out``. The result
    is a function of the seed, up to rounding, which depends on the machine and on the number of threads. The policy is
    left in evaluation mode. ``on_step`` gets the number of steps done and the loss, in nats per completion token.

    Raises:
        ConfigError: if ``steps`` is below 1.
    """
    raise_problems("warm_up", [f"steps={steps} must be >= 1, for example steps=900."] if steps < 1 else [])
    batches = _batches(tokenizer, task, generator(seed, Purpose.WARM_UP))
    for step, (_, loss) in enumerate(fit(model, batches, lambda step: step / steps), 1):
        if on_step is not None:
            on_step(step, loss)


def _batches(
    tokenizer: PreTrainedTokenizerFast, task: Task, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of demonstrations of similar length: (B, T) tokens, and the next token, or -1 where untrained."""
    weights = np.array([level**-0.5 for level in task.levels])
    weights /= weights.sum()
    while True:
        examples = _examples(tokenizer, task, rng.choice(task.levels, POOL, p=weights), rng)
        yield from bucketed(examples, rng, max_tokens=BATCH_TOKENS, pad=TOKENS.index(PAD))


def _examples(
    tokenizer: PreTrainedTokenizerFast, task: Task, levels: np.ndarray, rng: np.random.Generator
) -> list[Example]:
    problems = [draw_problem(int(k), rng, held_out=False, largest_total=task.largest_total) for k in levels]
    texts = [demonstration(problem, task.teacher, rng) + str(tokenizer.eos_token) for problem in problems]
    prompts = encode_questions(tokenizer, [problem.question for problem in problems])
    return [Example(*pair) for pair in zip(prompts, tokenizer(texts)["input_ids"], strict=True)]
