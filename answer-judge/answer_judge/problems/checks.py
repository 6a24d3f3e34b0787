"""Small checks of texts and rows that problems, rewards and evaluations share."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jinja2 import TemplateError

from answer_judge.errors import ConfigError


def text_key(text: str) -> int:
    """64 bits of a hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


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


def numbered(rows: Sequence[int]) -> str:
    """How many rows, and the first five."""
    first = ", ".join(map(str, rows[:5]))
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} (counted from 0: {first}{', ...' if len(rows) > 5 else ''})"
