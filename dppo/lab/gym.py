"""Tasks of the library reasoning-gym: problems by seed and number, and the task's own score as the reward.

reasoning-gym is imported when a task is made. torch is not needed here. In a script::

    task = reasoning_gym_task("chain_sum", {"max_terms": 2}, answer_pattern="number")
    dataset = Dataset.from_list(task.rows()).rename_column("problem", "prompt")
    DPPOTrainer(model, reward_funcs=GymScorer(), train_dataset=dataset, args=config).train()
"""

import atexit
import json
import multiprocessing
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from dppo.errors import ConfigError, DataError, did_you_mean, first_line
from dppo.install import install_line

PREFIX = "reasoning_gym:"
"""Start of a dataset name or benchmark name that asks for a task, such as ``reasoning_gym:chain_sum``."""
COLUMN = "reasoning_gym"
"""Column of a row that holds its task, arguments and number as JSON: the score makes the problem again from them."""
HELD_OUT_PARTS = 4
"""One of so many questions is held out."""
SEED_SPACING = 2**20
"""Distance between the generator's seeds of two runs: problem i of seed s depends on s + i alone."""
_NUMBER = re.compile(r"(?<![\d.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?")


def last_number(completion: str) -> str | None:
    """The last decimal number in a text, without commas; None without one."""
    found = _NUMBER.findall(completion)
    return found[-1].replace("−", "-").replace(",", "") if found else None


def tagged(completion: str) -> str | None:
    """The text of the last ``<answer>...</answer>``, None without one."""
    from reasoning_gym.utils import extract_answer

    return extract_answer(completion)


ANSWER_PATTERNS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {"text": str.strip, "number": last_number, "tags": tagged}
)
"""Functions that take the answer out of a completion, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymTask:
    """A task of reasoning-gym with its arguments; made by ``reasoning_gym_task``."""

    name: str
    """Its name in reasoning-gym."""
    arguments: Mapping[str, Any]
    """Arguments of its configuration, ``seed`` among them."""
    answer_pattern: str
    """A key of ``ANSWER_PATTERNS``."""

    def rows(self, *, held_out: bool = False) -> list[dict[str, Any]]:
        """Problems for training, or the held-out ones: ``problem``, ``answer`` (may be None) and ``COLUMN``.

        The task's argument ``size`` is the number of problems that are made, 500 by default. Equal questions count
        once, and a hash of the question decides if it is held out. So no seed trains on a held-out question.
        ``DataError``: none is left, because too few are made.
        """
        dataset = _dataset(self.name, _plain(self.arguments))
        found: dict[str, dict[str, Any]] = {}
        for number in range(len(dataset)):
            entry = dataset[number]
            question = entry["question"]
            if question not in found and is_held_out(question) == held_out:
                asked = {"task": self.name, "arguments": dict(self.arguments), "number": number}
                column = _plain({**asked, "question": key(question), "answer_pattern": self.answer_pattern})
                found[question] = {"problem": question, "answer": entry["answer"], COLUMN: column}
        if not found:
            said = f"{PREFIX}{self.name}: no problem of {len(dataset)} is {'held out' if held_out else 'trained on'}"
            raise DataError(f"{said}. Write task_arguments: {{size: 500}}")
        return list(found.values())


def is_gym(name: str | None) -> bool:
    """True if a name of a dataset or benchmark asks for a task of reasoning-gym."""
    return name is not None and name.startswith(PREFIX)


def reasoning_gym_task(
    name: str, arguments: Mapping[str, Any] | None = None, *, seed: int = 0, answer_pattern: str = "text"
) -> ReasoningGymTask:
    """A task of reasoning-gym by its name, with or without ``reasoning_gym:`` before it.

    Args:
        name: such as ``chain_sum``.
        arguments: of its configuration. ``size`` is the number of problems made, ``seed`` replaces the one below.
        seed: of the run, >= 0.
        answer_pattern: answer in a completion: ``text`` (all of it), ``number`` (the last one) or ``tags`` (in the
            last ``<answer>...</answer>``).

    Raises:
        ConfigError: reasoning-gym is missing, or there is no such task, argument, value or pattern.
    """
    name = name.removeprefix(PREFIX)
    if answer_pattern not in ANSWER_PATTERNS:
        raise ConfigError(f"answer_pattern={answer_pattern!r} must be one of {', '.join(ANSWER_PATTERNS)}")
    known = _registered(name)
    if name not in known:
        meant = did_you_mean(name, known)
        raise ConfigError(f"reasoning_gym has no task {name!r}. {meant}Write, for example, {PREFIX}chain_sum")
    given = {"seed": seed * SEED_SPACING % 2**32, **(arguments or {})}
    try:
        _dataset(name, _plain(given))
    except Exception as error:  # each task checks its arguments in its own way
        raise ConfigError(
            f"task_arguments={dict(arguments or {})}: {name} of reasoning_gym refuses them: {type(error).__name__}: "
            f"{first_line(error)}. It has {', '.join(field.name for field in fields(known[name][1]))}"
        ) from error
    return ReasoningGymTask(name=name, arguments=MappingProxyType(given), answer_pattern=answer_pattern)


def reasoning_gym_score(completion: str, row: Mapping[str, Any]) -> float:
    """The task's own score of the answer in a completion, in [0, 1]. No answer or an unreadable one scores 0.

    ``DataError``: this process makes another problem than the one that was asked.
    """
    dataset, entry, answer_pattern = _asked(row[COLUMN])
    answer = ANSWER_PATTERNS[answer_pattern](completion)
    if answer is None:
        return 0.0
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # scorers of some tasks raise when a text is no answer to them, such as int("so 12")
        return 0.0


class GymScorer:
    """Reward function of TRL for problems of reasoning-gym: the task's own score, None where it was not known in time.

    Scores come from worker processes: a scorer that hangs on a model's text costs a completion, and no run.

    Args:
        workers: processes, >= 1.
        limit_seconds: wall-clock seconds for one completion, > 0.
    """

    __name__ = "reasoning_gym_score"
    required_columns = (COLUMN,)

    def __init__(self, workers: int = 2, limit_seconds: float = 5.0) -> None:
        self.workers, self.limit_seconds = workers, limit_seconds
        self._pool: Any = None
        atexit.register(self.close)

    def close(self) -> None:
        """End the workers; the next call starts new ones."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        found = self.scores(texts, columns[COLUMN])
        if columns.get("log_metric") and found:
            right, late = found.count(1.0), found.count(None)
            for outcome, count in {"right": right, "timeout": late, "wrong": len(found) - right - late}.items():
                columns["log_metric"](f"check/{outcome}", count / len(found))
        return found

    def scores(self, texts: Sequence[str], rows: Sequence[str]) -> list[float | None]:
        """The score of each text, in [0, 1] or None, for the problem of its row's ``COLUMN``."""
        found: list[float | None] = []
        while len(found) < len(texts):
            if self._pool is None:
                # A forked worker would inherit locks that threads of torch hold, so workers are spawned.
                self._pool = multiprocessing.get_context("spawn").Pool(self.workers, _registered, ("",))
                self._pool.apply(_registered, ("",))  # the import takes seconds, which are no completion's
            left = list(zip(texts, rows, strict=True))[len(found) :]
            asked = [self._pool.apply_async(reasoning_gym_score, (text, {COLUMN: row})) for text, row in left]
            try:
                for each in asked:
                    found.append(each.get(self.limit_seconds))
            except multiprocessing.TimeoutError:
                found.append(None)
                self.close()
                said = f"no score within {self.limit_seconds:g} seconds for {texts[len(found) - 1][:120]!r}"
                warnings.warn(f"{said}: that completion has no reward", stacklevel=2)
        return found


def is_held_out(question: str) -> bool:
    """True for one question in ``HELD_OUT_PARTS``, for every seed."""
    return int(key(question), 16) % HELD_OUT_PARTS == 0


def key(text: str) -> str:
    """16 hexadecimal digits of a hash of a text, the same in every process."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _registered(name: str) -> Mapping[str, tuple[Any, Any]]:
    """Classes of the dataset and its configuration, by the name of the task. ``name`` is for the error."""
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("reasoning_gym"):
            raise
        raise ConfigError(f"{PREFIX}{name} needs reasoning-gym, not installed: {install_line('gym')}") from error
    return DATASETS


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=dict)


@lru_cache(maxsize=16)
def _dataset(name: str, arguments: str) -> Any:
    """The dataset of a task; ``arguments`` are JSON."""
    from reasoning_gym import create_dataset

    return create_dataset(name, **json.loads(arguments))


@lru_cache(maxsize=4096)
def _asked(column: str) -> tuple[Any, dict[str, Any], str]:
    """Dataset, entry and answer pattern of a row's ``COLUMN``."""
    asked = json.loads(column)
    dataset = _dataset(asked["task"], _plain(asked["arguments"]))
    entry = dataset[asked["number"]]
    if key(entry["question"]) != asked["question"]:
        said = f"{PREFIX}{asked['task']} makes other problems in each process, by Python's hash seed"
        raise DataError(f"{said}. Write PYTHONHASHSEED=0 before the command")
    return dataset, entry, asked["answer_pattern"]
