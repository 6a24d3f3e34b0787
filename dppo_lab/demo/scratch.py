"""Small policies from scratch, warmed up on worked solutions and saved: a start for runs without a download."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from answer_judge.grading.answers import worked_solution
from answer_judge.problems.solutions import SOLUTION_COLUMNS
from dppo.environment import one_thread
from dppo.errors import ConfigError, DataError
from dppo.rng import Purpose, generator
from dppo.verification.tiny_model import build_model, model_config
from dppo.verification.tiny_tokenizer import ASSISTANT, EOS, PAD, USER, build_tokenizer, chat_tokenizer, encode
from dppo_lab.demo.task import FULL, ArithmeticTask
from dppo_lab.demo.warmup import Example, bucketed, fit, warm_up

SCRATCH = "scratch:"
"""Prefix of a ``model_name_or_path`` for one of these policies: ``scratch:embedded``, ``scratch:text``."""

SPECIAL = (PAD, USER, ASSISTANT, EOS)
"""The first tokens of the vocabulary; a token's id is its position."""
VOCABULARY = 2048
BATCH_TOKENS = 1024
"""Most tokens in a batch, padding and prompts included; small, so that a few minutes hold many steps."""
POOL = 512
"""Within so many solutions they are sorted by length, so batches need little padding."""
LONGEST_SOLUTION = 160
"""In tokens. Longer ones are left out, so that the policy learns to end."""
LONGEST_SEQUENCE = 1024

OnStep = Callable[[float, float], None]
"""Called after each step with the share of the warm-up done, in [0, 1], and the loss in nats per completion token."""


def prepare_embedded(
    folder: Path, *, seed: int, task: ArithmeticTask = FULL, steps: int | None = None, on_step: OnStep | None = None
) -> None:
    """Make ``folder`` with the policy of the embedded task, warmed up on its imperfect teacher, and its tokenizer.

    The folder appears when it is complete. By default the warm-up takes the task's own number of steps.
    """
    with _appearing(folder) as unfinished:
        model, tokenizer = build_model(seed), build_tokenizer()
        count = task.warm_up_steps if steps is None else steps
        told = None if on_step is None else lambda step, loss: on_step(step / count, loss)
        with one_thread(model):
            warm_up(model, tokenizer, task, seed=seed, steps=count, on_step=told)
        model.model.norm.weight.data.mul_(task.sureness)  # logits are linear in it
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


def prepare_text(
    folder: Path, dataset: datasets.Dataset, *, seed: int, minutes: float, on_step: OnStep | None = None
) -> None:
    """Make ``folder`` with a policy of under a million parameters, trained for some minutes on worked solutions.

    The ``dataset`` is from ``load_problems``, with a solution in one of ``SOLUTION_COLUMNS``; the tokenizer is trained
    on it too. The policy learns what a solution looks like and where the answer goes, and hardly learns to calculate.
    It is a function of the seed and of the number of steps that fit into the time. The folder appears when complete.
    """
    if not minutes > 0:
        raise ConfigError(f"scratch_minutes={minutes:g} must be > 0, for example scratch_minutes: 3")
    prompts, completions = worked_pairs(dataset)
    with _appearing(folder) as unfinished:
        tokenizer = train_tokenizer([*map(_text, prompts), *completions])
        examples = _examples(tokenizer, prompts, completions)
        pad, end = (SPECIAL.index(token) for token in (PAD, EOS))
        model = build_model(seed, model_config(len(tokenizer), longest=LONGEST_SEQUENCE, pad=pad, end=end))
        batches = _batches(examples, generator(seed, Purpose.WARM_UP), pad=pad)
        start = time.monotonic()
        with one_thread(model):
            for done, loss in fit(model, batches, lambda step: (time.monotonic() - start) / (60 * minutes)):
                if on_step is not None:
                    on_step(done, loss)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A sibling folder to write into, which is renamed to ``folder`` at the end, or removed after an error."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already. Remove it to make the model anew: rm -r {folder}")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def worked_pairs(dataset: datasets.Dataset) -> tuple[list[Any], list[str]]:
    """The prompts, and the completions to learn."""
    present = dataset.column_names
    column = next((name for name in SOLUTION_COLUMNS if name in present), None)
    missing = [name for name in ("prompt", "answer") if name not in present]
    missing += [] if column else [" or ".join(SOLUTION_COLUMNS)]
    if missing or column is None:
        raise DataError(
            f"a model from scratch needs worked solutions to warm up on: the dataset has no column "
            f"{', '.join(missing)}, only {', '.join(present)}. Name a model instead: "
            "model_name_or_path: Qwen/Qwen3-0.6B"
        )
    solutions = list(dataset[column])
    empty = [row for row, text in enumerate(solutions) if not (isinstance(text, str) and text.strip())]
    if empty:
        raise DataError(
            f"column {column!r} is empty in {len(empty)} of {len(solutions)} rows (from 0: {empty[0]}, ...): a model "
            "from scratch warms up on them. Leave those rows out of the file"
        )
    return list(dataset["prompt"]), list(map(worked_solution, solutions, map(str, dataset["answer"])))


def _text(prompt: Any) -> str:
    """The text of a prompt."""
    if isinstance(prompt, str):
        return prompt
    unknown = {message["role"] for message in prompt} - {"user", "assistant"}
    if unknown:
        raise DataError(
            f"a prompt has a message of role {unknown.pop()!r}; a model from scratch knows user and assistant only. "
            'Write {"role": "user", "content": ...}, or give the problem as text'
        )
    return "\n".join(message["content"] for message in prompt)


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most ``VOCABULARY`` tokens, with a chat template and one token per digit."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return chat_tokenizer(core)


def _examples(tokenizer: PreTrainedTokenizerFast, prompts: list[Any], completions: list[str]) -> list[Example]:
    """The pairs as tokens, without those that are too long."""
    given = cast(list[list[int]], tokenizer([text + EOS for text in completions])["input_ids"])
    examples = [Example(*pair) for pair in zip(encode(tokenizer, prompts), given, strict=True)]
    fitting = [e for e in examples if len(e.completion) <= LONGEST_SOLUTION and e.length <= LONGEST_SEQUENCE]
    if not fitting:
        raise DataError(
            f"none of the {len(examples)} solutions fits into {LONGEST_SOLUTION} tokens: too long for a model from "
            "scratch. Name a model instead: model_name_or_path: Qwen/Qwen3-0.6B"
        )
    return fitting


def _batches(examples: list[Example], rng: np.random.Generator, *, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches, every example once per pass."""
    while True:
        order = rng.permutation(len(examples))
        for start in range(0, len(order), POOL):
            pool = [examples[index] for index in order[start : start + POOL]]
            yield from bucketed(pool, rng, max_tokens=BATCH_TOKENS, pad=pad)
