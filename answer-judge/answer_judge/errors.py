"""Errors that say what is wrong, with which value, and one line that works."""

from collections.abc import Mapping
from typing import Any


class JudgeError(Exception):
    """Base of every error this library raises on purpose."""

    explained = True
    """The message says what to do: whoever calls a reward function need not wrap it."""


class ConfigError(JudgeError, ValueError):
    """A setting is out of range, contradicts another, or is not supported."""


class DataError(JudgeError, ValueError):
    """A dataset lacks a column, or holds rows that cannot be judged."""


class RewardError(JudgeError, RuntimeError):
    """A judge cannot give verdicts: its workers cannot start, or what it needs is not installed."""


class EvaluationError(JudgeError, RuntimeError):
    """An evaluation cannot go on: its folder belongs to another one, is damaged, or has no room."""


class FileError(JudgeError, RuntimeError):
    """A file of results is missing, damaged, or of another version."""


def in_one_line(error: BaseException) -> str:
    """Kind and message without line breaks, up to 600 characters: pydantic's first line has only the count."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def raise_problems(where: str, problems: list[str]) -> None:
    """Raise one ``ConfigError`` that lists every problem of the object ``where``; return if there is none."""
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        raise ConfigError(f"{where}: {count}\n  - " + "\n  - ".join(problems))


def is_listed(value: Any) -> bool:
    """True if a value is a list, or a column or array that has a length as one: text and dictionaries are not."""
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
