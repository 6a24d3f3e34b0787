"""Errors that say what is wrong, with which value, and one line that works."""


class DPPOError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigError(DPPOError, ValueError):
    """A setting is out of range, contradicts another, or is not supported."""


class DesignError(DPPOError, ValueError):
    """A sampling design cannot do what it was asked: a budget out of reach, a row that must but cannot be kept."""


class ShapeError(DPPOError, ValueError):
    """Tensors that belong together do not have matching shapes."""


class DataError(DPPOError, ValueError):
    """A dataset lacks a column, or holds rows that cannot be trained on."""


class RewardError(DPPOError, RuntimeError):
    """A reward function raised, hung, or returned something that is not one number per completion."""


class RoundsError(DPPOError, RuntimeError):
    """Too few groups of a step's rollouts can be learned from, and no further round is allowed."""


class OutOfMemoryError(DPPOError, RuntimeError):
    """A training pass does not fit into memory."""


class EngineError(DPPOError, RuntimeError):
    """The engine that samples completions failed in the middle of training."""


class CheckpointError(DPPOError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to another run."""


class EvaluationError(DPPOError, RuntimeError):
    """An evaluation cannot go on: its folder belongs to another one, is damaged, or has no room."""


class FileError(DPPOError, RuntimeError):
    """A file that a run left behind is missing, damaged, or of another version."""


def first_line(error: BaseException) -> str:
    """The first line of a message, which torch and others follow by a page."""
    return (str(error).strip() or "no message").splitlines()[0]


def in_one_line(error: BaseException) -> str:
    """Kind and message without line breaks, up to 600 characters: pydantic's first line says only how many problems."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def raise_problems(where: str, problems: list[str]) -> None:
    """Raise one ``ConfigError`` that lists every problem, or return when there is none.

    Args:
        where: what was checked, e.g. ``"DPPOConfig"``.
        problems: one sentence each: the setting, its value, the allowed range, a value that works.

    Raises:
        ConfigError: if ``problems`` is not empty.
    """
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        raise ConfigError(f"{where}: {count}\n  - " + "\n  - ".join(problems))
