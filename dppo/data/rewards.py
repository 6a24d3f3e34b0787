"""Reward functions with TRL's signature, and the check that a dataset has the columns they need."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dppo.data.answers import last_boxed
from dppo.data.verifier import REASONS, Verifier
from dppo.errors import DataError

Reward = Callable[..., Any]
"""``reward(prompts=..., completions=..., **columns)`` -> one number, NaN or None per completion."""

PASSED_BY_TRAINER = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
"""What a trainer passes to a reward function besides the dataset's columns."""


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or the text of its last message.

    Args:
        completion: a string, or a list of messages with a ``content`` of text, of parts, or None.
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def accuracy_reward(
    *,
    answer_column: str = "answer",
    benchmark: str | None = None,
    verifier: Verifier | None = None,
    workers: int = 2,
    limit_seconds: float = 5.0,
) -> Reward:
    """A reward of 1.0 for a right final answer and 0.0 for any other, judged by math-verify in worker processes.

    The share of each reason (wrong, no answer, timeout, ...) is logged as ``verify/<reason>`` where the trainer offers
    logging, so that an answer that cannot be judged is never just a zero.

    Args:
        answer_column: the dataset's column of gold answers.
        benchmark: the rule to judge by, see ``verifier.RULES``.
        verifier: one to share; by default the reward has its own, shut down at exit.
        workers: processes of its own verifier, >= 1.
        limit_seconds: wall-clock seconds for one answer in its own verifier, > 0.

    Raises:
        ConfigError: math-verify is missing, or a setting is out of range. The reward raises DataError for a column
            that is missing or an answer that is empty.
    """
    judge = verifier or Verifier(workers=workers, limit_seconds=limit_seconds)

    def accuracy(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if answer_column not in columns:
            raise DataError(_no_column(answer_column, [name for name in columns if name not in PASSED_BY_TRAINER]))
        golds = ["" if gold is None else str(gold) for gold in columns[answer_column]]
        verdicts = judge.verify_many([completion_text(c) for c in completions], golds, benchmark=benchmark)
        reasons = [verdict.reason for verdict in verdicts]
        if columns.get("log_extra"):
            columns["log_extra"]("verdict", reasons)
        if columns.get("log_metric") and reasons:
            for reason in REASONS:
                columns["log_metric"](f"verify/{reason}", reasons.count(reason) / len(reasons))
        return [verdict.value for verdict in verdicts]

    accuracy.__name__ = "accuracy_reward"
    accuracy.__dict__["required_columns"] = (answer_column,)
    return accuracy


def format_reward(has_format: Callable[[str], bool] | None = None) -> Reward:
    r"""A reward of 1.0 for a completion in the right format and 0.0 for any other.

    Args:
        has_format: whether a completion's text is in the format. Default: it has a complete ``\boxed{...}`` that is
            not empty.
    """
    check = has_format or (lambda text: last_boxed(text) is not None)

    def form(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(check(completion_text(completion))) for completion in completions]

    form.__name__ = "format_reward"
    return form


def required_columns(reward: Reward) -> tuple[str, ...]:
    """The dataset columns a reward function needs, in order.

    Its attribute ``required_columns`` if it has one, else its parameters without a default that no trainer passes.
    """
    declared = getattr(reward, "required_columns", None)
    if declared is not None:
        return tuple(declared)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(reward).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind in kinds and parameter.default is parameter.empty and parameter.name not in PASSED_BY_TRAINER
    )


def check_reward_columns(dataset: Any, columns: Sequence[str] = ("answer",)) -> None:
    """Check, before training, that a dataset has what its rewards need: every column, and no empty value in it.

    Args:
        dataset: a ``datasets.Dataset``; of a streamed one only the names of columns are checked.
        columns: what the rewards need; for a function of your own, ``required_columns(function)``.

    Raises:
        DataError: a missing column, an empty value, or a column named like an argument of the trainer's own.
    """
    present = list(dataset.column_names or [])
    clash = sorted(PASSED_BY_TRAINER.intersection(present))
    if clash:
        raise DataError(
            f"column {clash[0]!r} has the name of an argument the trainer passes to rewards itself: "
            f"dataset.rename_column({clash[0]!r}, 'my_{clash[0]}')"
        )
    for column in columns:
        if column not in present:
            raise DataError(_no_column(column, present))
        if not hasattr(dataset, "__getitem__"):
            continue
        empty = [row for row, value in enumerate(dataset[column]) if value is None or not str(value).strip()]
        if empty:
            first = ", ".join(map(str, empty[:5]))
            raise DataError(
                f"column {column!r} is empty in {len(empty)} of {len(dataset)} rows (from 0: {first}"
                f"{', ...' if len(empty) > 5 else ''}): no reward can be earned there. "
                "Drop them with check_problems(dataset, on_bad_rows='drop')"
            )


def _no_column(column: str, present: Sequence[str]) -> str:
    """The message for a column that is not there."""
    return (
        f"the reward needs a column {column!r}, but the dataset has {', '.join(map(repr, present)) or 'none'}. "
        "Name the right one with answer_column=..., or rename it: dataset.rename_column('my_answer', 'answer')"
    )
