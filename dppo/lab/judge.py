"""answer_judge, a distribution of its own, imported only where a run asks for what it judges."""

import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError, DPPOError
from dppo.install import source_of_copy

EXPLAINED: tuple[type[Exception], ...] = (DPPOError,)
"""Errors whose message says what to do: a command prints it and ends, a dry run lists it."""
try:
    from answer_judge.errors import JudgeError
except ModuleNotFoundError:
    pass
else:
    EXPLAINED += (JudgeError,)


def judge(part: str, asked: str) -> Any:
    """The module ``answer_judge.<part>``; ``asked`` is the setting that needs it, for the error.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(f"answer_judge.{part}")
    except ModuleNotFoundError as error:
        if error.name != "answer_judge":
            raise
        raise ConfigError(f"{asked} needs answer-judge, which is not installed: {judge_line()}") from None


def judge_line() -> str:
    """The pip command for answer-judge, a distribution in the same repository, from where this copy is."""
    folder, source = Path(__file__).parents[2] / "answer-judge", source_of_copy()
    if (folder / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{folder}[eval]')}"
    if "+" in source:
        return f"pip install {shlex.quote(f'answer-judge[eval] @ {source}#subdirectory=answer-judge')}"
    return "pip install './answer-judge[eval]' in a clone of dppo's repository"
