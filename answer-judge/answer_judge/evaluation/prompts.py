"""How a problem becomes the tokens a model reads: its chat template, or a plain one where it has none."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from answer_judge.errors import ConfigError, in_one_line
from answer_judge.evaluation.engines import ModelSpec

PLAIN = "Problem:\n{prompt}\n\nSolution:\n"
"""What a model without a chat template reads."""
PLAIN_STOP = "\nProblem:"
"""Ends the answer of a model that goes on with another problem."""


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """From the text of a user's turn to token ids, and what a reader must know about it."""

    encode: Callable[[Sequence[str]], list[list[int]]]
    """Token ids of each text, ready for the model's answer."""
    facts: Mapping[str, Any]
    """Which template it is: part of an evaluation's identity."""
    stop: str | None = None
    """A completion counts up to this text only."""
    notes: tuple[str, ...] = field(default=())


def load_tokenizer(spec: ModelSpec) -> Any:
    """The tokenizer of a model, or the one named in its place; ``ConfigError``: there is none, or an empty one."""
    from transformers import AutoTokenizer

    model = spec.tokenizer or spec.model
    # A revision is one of the model's: of another tokenizer's repository it says nothing.
    revision = {} if spec.tokenizer or spec.revision is None else {"revision": spec.revision}
    advice = "Save it there with tokenizer.save_pretrained, or name another: --tokenizer Qwen/Qwen3-0.6B"
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=spec.trust_remote_code, **revision)
    except (OSError, ValueError) as error:
        reason = in_one_line(error)
        if not Path(model).is_dir():
            raise ConfigError(
                f"model {model}: no such folder (looked in {Path.cwd()}), and nothing from the hub: {reason}"
            ) from error
        raise ConfigError(f"model {model} has no tokenizer ({reason}). {advice}") from error
    if not tokenizer("0 1")["input_ids"]:
        raise ConfigError(f"model {model} has no tokenizer: the one transformers makes for it has no words. {advice}")
    return tokenizer


def prompt_format(tokenizer: Any, chat_options: Mapping[str, Any] | None = None) -> PromptFormat:
    """The model's chat template with the problem as the user's turn, or ``PLAIN`` where it has none.

    ``chat_options`` are further variables of the chat template, such as ``{"enable_thinking": False}``.
    ``ConfigError``: options without a chat template. ``encode`` raises it for text the tokenizer cannot encode.
    """
    options = dict(chat_options or {})
    has_template = tokenizer.chat_template is not None
    if options and not has_template:
        raise ConfigError(
            f"--chat_template_kwargs {options}: the tokenizer has no chat template to give them to. Leave them out"
        )

    def encode(texts: Sequence[str]) -> list[list[int]]:
        with _encodable():
            if not has_template:
                return tokenizer([PLAIN.replace("{prompt}", text) for text in texts])["input_ids"]
            turns = [[{"role": "user", "content": text}] for text in texts]
            settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **options}
            return tokenizer.apply_chat_template(turns, **settings)

    if has_template:
        digest = hashlib.sha256(tokenizer.get_chat_template().encode()).hexdigest()
        facts = {"format": "chat template", "chat_template": digest, "chat_options": options}
        return PromptFormat(encode=encode, facts=facts)
    note = f"the model has no chat template: it reads {PLAIN!r}, and its answer ends before {PLAIN_STOP!r}"
    return PromptFormat(encode=encode, facts={"format": "plain", "plain": PLAIN}, stop=PLAIN_STOP, notes=(note,))


@contextmanager
def _encodable() -> Iterator[None]:
    """Turns what a tokenizer cannot encode, or its chat template refuses, into a ``ConfigError``."""
    try:
        yield
    except TemplateError as error:
        raise ConfigError(f"the chat template refuses these problems as the user's turn: {error}") from error
    except Exception as error:  # tokenizers raises plain Exception for text outside its vocabulary
        if type(error) is not Exception:
            raise
        raise ConfigError(f"the tokenizer cannot encode these problems ({error}): evaluate another model") from error
