"""What must hold of problems before a run starts."""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import datasets
from jinja2 import TemplateError

from answer_judge.errors import ConfigError, DataError


def text_key(text: str) -> int:
    """64 bits of a hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def check_problems(
    dataset: datasets.Dataset,
    *,
    tokenizer: Any = None,
    max_prompt_tokens: int | None = None,
    minimum: int = 1,
    on_bad_rows: str = "error",
) -> datasets.Dataset:
    """The dataset, checked: no empty prompt or answer, no prompt that is too long, and enough prompts.

    Prompts that occur more than once are kept and reported with a warning; with different answers, with another.

    Args:
        dataset: with the column ``prompt``; ``answer`` is checked where there is one.
        tokenizer: what prompts are measured with, for ``max_prompt_tokens``.
        max_prompt_tokens: longest allowed prompt in tokens, chat template included, >= 1.
        minimum: prompts needed, usually as many as one generation takes.
        on_bad_rows: ``error``, or ``drop``: leave bad rows out and warn how many, and why.

    Raises:
        ConfigError: a setting out of range.
        DataError: bad rows, by number and reason, or too few prompts.
    """
    if on_bad_rows not in ("error", "drop"):
        raise ConfigError(f"on_bad_rows={on_bad_rows!r} must be 'error' or 'drop'")
    if max_prompt_tokens is not None and (max_prompt_tokens < 1 or tokenizer is None):
        raise ConfigError(
            f"max_prompt_tokens={max_prompt_tokens} must be at least 1, and needs the model's tokenizer: "
            "check_problems(dataset, tokenizer=tokenizer, max_prompt_tokens=512)"
        )
    if "prompt" not in dataset.column_names:
        present = ", ".join(map(repr, dataset.column_names))
        raise DataError(f"the dataset has no column 'prompt', only {present}: load it with load_problems(source)")
    bad = _bad_rows(dataset, tokenizer, max_prompt_tokens)
    rows = set().union(*bad.values())
    if rows:
        text = "; ".join(f"{reason} in {numbered(found)}" for reason, found in bad.items() if found)
        if on_bad_rows == "error":
            raise DataError(
                f"{len(rows)} of {len(dataset)} rows cannot be trained on: {text}. "
                "Leave them out with on_bad_rows='drop'"
            )
        warnings.warn(f"{len(rows)} of {len(dataset)} rows left out: {text}", stacklevel=3)
        dataset = dataset.select([row for row in range(len(dataset)) if row not in rows])
    if len(dataset) < minimum:
        raise DataError(
            f"{len(dataset)} prompts are fewer than the {minimum} that one generation needs. "
            "Add problems, or make generation_batch_size (per_device_train_batch_size, num_processes) smaller"
        )
    _warn_of_repeats(dataset)
    return dataset


def _bad_rows(dataset: datasets.Dataset, tokenizer: Any, longest: int | None) -> dict[str, list[int]]:
    prompts = list(dataset["prompt"])
    bad = {"empty prompt": [row for row, prompt in enumerate(prompts) if not _text(prompt).strip()]}
    if "answer" in dataset.column_names:
        answers = dataset["answer"]
        bad["empty answer"] = [row for row, answer in enumerate(answers) if answer is None or not str(answer).strip()]
    if longest is not None:
        asked = {row: prompt for row, prompt in enumerate(prompts) if row not in bad["empty prompt"]}
        counts = {row: len(prompt_tokens(tokenizer, prompt)) for row, prompt in asked.items()}
        reason = f"prompt of more than max_prompt_tokens={longest} tokens (longest: {max(counts.values(), default=0)})"
        bad[reason] = [row for row, count in counts.items() if count > longest]
    return bad


def _text(prompt: Any) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    contents = [message.get("content") for message in prompt]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return "".join(
        (part.get("text") or part.get("type") or "") if isinstance(part, dict) else part or "" for part in parts
    )


@contextmanager
def encodable(what: str, advice: str) -> Iterator[None]:
    """Turns what a tokenizer cannot encode, or its chat template refuses, into a ``ConfigError`` with advice."""
    try:
        yield
    except TemplateError as error:
        raise ConfigError(f"the chat template refuses {what} as the user's turn: {error}") from error
    except Exception as error:  # tokenizers raises plain Exception for text outside its vocabulary
        if type(error) is not Exception:
            raise
        raise ConfigError(f"the tokenizer cannot encode {what} ({error}): {advice}") from error


def prompt_tokens(tokenizer: Any, prompt: Any, template: Mapping[str, Any] = MappingProxyType({})) -> list[int]:
    """Token ids of a prompt as the model is given it to answer; ``template`` are options of the chat template."""
    settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **template}
    with encodable(f"the prompt {prompt!r:.80}", "train a model whose vocabulary has its characters"):
        if isinstance(prompt, str):
            return list(tokenizer(prompt)["input_ids"])
        return list(tokenizer.apply_chat_template(prompt, **settings))


def numbered(rows: Sequence[int]) -> str:
    first = ", ".join(map(str, rows[:5]))
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} (counted from 0: {first}{', ...' if len(rows) > 5 else ''})"


def _warn_of_repeats(dataset: datasets.Dataset) -> None:
    """Warn of prompts that occur several times, and of those whose answers contradict each other."""
    keys = [json.dumps(prompt, sort_keys=True) for prompt in dataset["prompt"]]
    repeated = {key: count for key, count in Counter(keys).items() if count > 1}
    if not repeated:
        return
    warnings.warn(
        f"{len(repeated)} prompts occur more than once, in {sum(repeated.values())} of {len(dataset)} rows: "
        "they stay separate rows, each with a history of its own",
        stacklevel=4,
    )
    if "answer" in dataset.column_names:
        answers: dict[str, set[str]] = {}
        for key, answer in zip(keys, dataset["answer"], strict=True):
            answers.setdefault(key, set()).add(str(answer))
        rows = [row for row, key in enumerate(keys) if len(answers[key]) > 1]
        if rows:
            warnings.warn(f"the same prompt has different answers in {numbered(rows)}", stacklevel=4)
