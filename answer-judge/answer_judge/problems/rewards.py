"""Reward functions with TRL's signature, and the check that a dataset has the columns they need."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import datasets

from answer_judge.errors import DataError, is_listed
from answer_judge.grading.answers import after_hashes, last_boxed
from answer_judge.grading.rules import DETAILS, Grading, with_details
from answer_judge.grading.verifier import REASONS, Verifier
from answer_judge.problems.columns import numbered

Reward = Callable[..., Any]
"""``reward(prompts=..., completions=..., **columns)`` -> one number, NaN or None per completion."""

Table = datasets.Dataset | datasets.IterableDataset

PASSED_BY_TRAINER = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
"""What a trainer passes to a reward function besides the dataset's columns."""


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or that of its last message, whose content may be parts or None."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    try:
        content = completion[-1].get("content") if completion else None
        parts = content if isinstance(content, list) else [{"text": content}]
        return "".join(part.get("text") or "" for part in parts)
    except (TypeError, AttributeError, KeyError) as error:
        raise DataError(
            f"completion {completion!r} is neither text nor a list of messages such as "
            "[{'role': 'assistant', 'content': 'so it is 5'}]"
        ) from error


def log_verdicts(columns: Mapping[str, Any], part: str, known: Iterable[str], reasons: list[str]) -> None:
    """Log each verdict where ``columns`` has TRL's loggers, and the share of each known one as ``part/verdict``."""
    if columns.get("log_extra"):
        columns["log_extra"]("verdict", reasons)
    if columns.get("log_metric") and reasons:
        for reason in known:
            columns["log_metric"](f"{part}/{reason}", reasons.count(reason) / len(reasons))


def accuracy_reward(
    *,
    answer_column: str = "answer",
    benchmark: str | None = None,
    verifier: Verifier | None = None,
    workers: int = 2,
    limit_seconds: float = 5.0,
) -> Reward:
    """A reward of 1.0 for a right final answer and 0.0 for any other, judged by the verifier in worker processes.

    The share of each reason (wrong, no answer, timeout, ...) is logged as ``verify/<reason>``.

    Args:
        answer_column: the dataset's column of gold answers; columns named as in ``rules.DETAILS`` are read with it.
        benchmark: the rule to judge by, a key of ``grading.RULES``.
        verifier: one to share; by default the reward has its own, with the other arguments.
        workers: processes, >= 1; a setting out of range is a ``ConfigError``.
        limit_seconds: wall-clock seconds for one answer, > 0.

    The reward raises ``DataError`` for a column that is missing or an answer that is empty.
    """
    judge = verifier or Verifier(workers=workers, limit_seconds=limit_seconds)

    def accuracy(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if answer_column not in columns:
            raise DataError(_no_column(answer_column, [name for name in columns if name not in PASSED_BY_TRAINER]))
        if not is_listed(columns[answer_column]):
            raise DataError(f"{answer_column}={columns[answer_column]!r:.80} is no list of one answer per completion")
        golds = [_gold(answer_column, gold) for gold in columns[answer_column]]
        said = [{name: columns[name][i] for name in DETAILS if name in columns} or None for i in range(len(golds))]
        texts = [completion_text(completion) for completion in completions]
        verdicts = judge.verify_many(texts, golds, benchmark=benchmark, details=said)
        log_verdicts(columns, "verify", REASONS, [verdict.reason for verdict in verdicts])
        return [verdict.value for verdict in verdicts]

    accuracy.__name__ = "accuracy_reward"
    accuracy.__dict__["required_columns"] = accuracy.__dict__["text_columns"] = (answer_column,)
    accuracy.__dict__["detail_columns"] = DETAILS
    return accuracy


def _gold(column: str, value: Any) -> str:
    """A gold answer as text; lists, NaN and worked solutions, which as text no answer is equal to, are errors."""
    if isinstance(value, (list, tuple, dict, bytes, bool)):
        raise DataError(
            f"gold answer {value!r} in column {column!r} is a {type(value).__name__}, not text or a number. "
            f"Several answers are one text: dataset.map(lambda row: {{{column!r}: ', '.join(row[{column!r}])}})"
        )
    if isinstance(value, float) and value != value:
        raise DataError(
            f"gold answer nan in column {column!r} is an empty cell. "
            f"Drop it: dataset.filter(lambda row: row[{column!r}] == row[{column!r}])"
        )
    if isinstance(value, str) and after_hashes(value) is not None:
        raise DataError(
            f"gold answer {value[-40:]!r} in column {column!r} is a worked solution, of which the line after '####' is "
            f"the answer: dataset.map(lambda row: {{{column!r}: row[{column!r}].split('####')[-1].strip()}})"
        )
    return "" if value is None else str(value)


def format_reward() -> Reward:
    r"""A reward of 1.0 for a completion with a complete ``\boxed{...}`` that is not empty, and 0.0 for any other."""

    def form(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [float(last_boxed(completion_text(completion)) is not None) for completion in completions]

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


def check_rewards(dataset: Table, rewards: Sequence[Any]) -> None:
    """Check, before training, that a dataset has what its rewards need; of a streamed one only the columns' names.

    ``DataError``: a missing column, an empty value, a gold answer that is a list or a worked solution, details that
    cannot be, or a column named like an argument of the trainer's own.
    """
    functions = [reward for reward in rewards if callable(reward) and not hasattr(reward, "config")]
    needed = sorted({column for reward in functions for column in required_columns(reward)})
    gold_columns = {column for reward in functions for column in getattr(reward, "text_columns", ())}
    present = list(dataset.column_names or [])
    clash = sorted(PASSED_BY_TRAINER.intersection(present))
    if clash:
        raise DataError(
            f"column {clash[0]!r} has the name of an argument the trainer passes to rewards itself: "
            f"dataset.rename_column({clash[0]!r}, 'my_{clash[0]}')"
        )
    for column in needed:
        if column not in present:
            raise DataError(_no_column(column, present))
        if isinstance(dataset, datasets.IterableDataset):
            continue
        empty = [row for row, value in enumerate(dataset[column]) if value is None or not str(value).strip()]
        if empty:
            raise DataError(
                f"column {column!r} is empty in {numbered(empty)} of {len(dataset)}. "
                f"Leave them out: dataset.filter(lambda row: row[{column!r}])"
            )
        if column in gold_columns:
            for value in dataset[column]:
                _gold(column, value)
    if isinstance(dataset, datasets.Dataset):
        _check_details(dataset, {column for reward in functions for column in getattr(reward, "detail_columns", ())})


def _check_details(dataset: datasets.Dataset, names: set[str]) -> None:
    for name in sorted(names.intersection(dataset.column_names)):
        for row, value in enumerate(dataset[name]):
            try:
                with_details(Grading(), {name: value})
            except DataError as error:
                raise DataError(f"column {name!r}, row {row}: {error}") from None


def _no_column(column: str, present: Sequence[str]) -> str:
    return (
        f"the reward needs a column {column!r}, but the dataset has {', '.join(map(repr, present)) or 'none'}. "
        "Name the right one with answer_column=..., or rename it: dataset.rename_column('my_answer', 'answer')"
    )
