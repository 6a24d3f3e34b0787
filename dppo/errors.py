"""Errors of the library. A message names the setting and its value, the rule it breaks, and one line that works."""

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from functools import partial
from typing import Any


class DPPOError(Exception):
    """Base of every error this library raises on purpose."""

    explained = True
    """The message is complete: ``guarded`` does not wrap it."""


class ConfigError(DPPOError, ValueError):
    """A setting is out of range, contradicts another, or is not supported."""


class DesignError(DPPOError, ValueError):
    """A sampling design is impossible: a budget out of reach, or a row that must but cannot be kept."""


class ShapeError(DPPOError, ValueError):
    """Tensors that belong together do not have matching shapes."""


class DataError(DPPOError, ValueError):
    """A dataset lacks a column, or holds rows that cannot be trained on."""


class RewardError(DPPOError, RuntimeError):
    """A reward function raised, hung, or did not return one number per completion."""


class RoundsError(DPPOError, RuntimeError):
    """Too few groups of a step's rollouts have a signal, and no further round is allowed."""


class OutOfMemoryError(DPPOError, RuntimeError):
    """A training pass does not fit into memory."""


class EngineError(DPPOError, RuntimeError):
    """The engine that samples completions could not start, or failed in the middle of training."""


class CheckpointError(DPPOError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to another run."""


class FileError(DPPOError, RuntimeError):
    """A file of an earlier run is missing, damaged, or of another version."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message: those of torch and others may be a page long."""
    return (str(error).strip() or "no message").splitlines()[0]


def in_one_line(error: BaseException) -> str:
    """Kind and message without line breaks, up to 600 characters: pydantic's first line has only the count."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question with the at most three known names nearest to a misspelt word, and a space; "" if no name is near."""
    word, names = word.lower(), list(known)
    likeness = {name: SequenceMatcher(a=name, b=word).ratio() for name in names}
    best = max(likeness.values(), default=0.0)
    near = [name for name in likeness if likeness[name] == best]
    # A name is near too if the word is a part of it: ``model`` of ``model_name_or_path``.
    parts = sorted((name for name in names if f"_{word}_" in f"_{name}_"), key=lambda name: not name.startswith(word))
    near = near if best >= 0.8 else parts or (near if best >= 0.7 else [])
    return f"Did you mean {' or '.join(near[:3])}? " if near else ""


def raise_problems(where: str, problems: list[str]) -> None:
    """Raise one ``ConfigError`` with all problems of ``where``, such as ``"DPPOConfig"``; return if there are none."""
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        raise ConfigError(f"{where}: {count}\n  - " + "\n  - ".join(problems))


def duration(seconds: float) -> str:
    """Seconds >= 0 as text in the two largest units: ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def in_words(function: Callable[..., Any]) -> str:
    """Name of a function with the constants bound to it, for messages."""
    if isinstance(function, partial):
        bound = (f"{key}={in_words(each) if callable(each) else each}" for key, each in function.keywords.items())
        return f"{in_words(function.func)}({', '.join(bound)})"
    return getattr(function, "__name__", type(function).__name__).replace("_", " ")
