"""Problems judged by a user's function: ``check:package.module:function``."""

import importlib
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from answer_judge.errors import ConfigError, DataError, RewardError
from answer_judge.files import current_folder_first
from answer_judge.grading.pool import WorkerPool
from answer_judge.problems.checker_worker import score
from answer_judge.problems.rewards import PASSED_BY_TRAINER, Reward, completion_text

CHECK = "check:"
"""How a reward or a rule begins that is such a function."""
_NAME = re.compile(r"check:([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_FORM = "def right(completion: str, row: dict) -> float"


def is_check(name: str | None) -> bool:
    """True if a reward or a rule is named like a checker."""
    return name is not None and name.startswith(CHECK)


def find_checker(name: str) -> Callable[..., Any]:
    """The function that ``check:package.module:function`` names, looked for in the current folder first."""
    form = _NAME.fullmatch(name)
    if form is None:
        raise ConfigError(f"{name!r} is not of the form check:package.module:function, such as check:countdown:right")
    module, attribute = form.groups()
    try:
        with current_folder_first():
            found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # also what the user's module raises
        raise ConfigError(
            f"{name}: {type(error).__name__}: {error}. It must be a function that can be imported from here "
            f"({os.getcwd()}), {_FORM}"
        ) from error
    if not callable(found):
        raise ConfigError(f"{name} is {type(found).__name__}, not a function. Write {_FORM}")
    return found


class Checker:
    """Scores completions with a user's function, in worker processes under a time limit.

    A completion on which the function raises, hangs, or returns what is no score has none: ``None``, with a warning. A
    function that has never scored anything by the end of the first batch is broken, and raises.

    ``name`` is ``check:package.module:function``, other arguments are as for ``Verifier``. ``ConfigError``: no such
    function, or a setting out of range.
    """

    def __init__(self, name: str, *, workers: int = 2, limit_seconds: float = 5.0, memory_mb: int = 4096) -> None:
        find_checker(name)
        self.name, self.limit_seconds = name, limit_seconds
        self.module, self.function = name.removeprefix(CHECK).split(":")
        imported = ({"module": self.module, "function": self.function}, {})  # before the clock of the first completion
        with current_folder_first():
            self._pool = WorkerPool(
                score, workers=workers, limit_seconds=limit_seconds, memory_mb=memory_mb, probes=[imported]
            )
        self._scored = self._faults = 0

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def scores(self, texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[tuple[float | None, str]]:
        """Of each completion its score in [0, 1] or None, and why: ``right`` (1), ``wrong``, ``timeout``, ``crashed``.

        ``DataError``: a row that JSON cannot hold. ``RewardError``: nothing could be scored, in the first batch.
        """
        named = {"module": self.module, "function": self.function}
        tasks = [{**named, "text": text, "row": _plain(row)} for text, row in zip(texts, rows, strict=True)]
        found = [self._read(outcome) for outcome in self._pool.map(tasks)]
        faults = [(place, said) for place, (_, said) in enumerate(found) if said not in ("right", "wrong")]
        self._scored += len(found) - len(faults)
        if faults and not self._scored:
            place, said = faults[0]
            raise RewardError(
                f"{self.name} scored none of the first {len(found)} completions. It {said}, on {texts[place][:120]!r} "
                f"with row {rows[place]!r:.200}. Write {_FORM}, which gives True, False or a number from 0 to 1"
            )
        for place, said in faults:
            self._faults += 1
            if self._faults & (self._faults - 1) == 0:  # 1, 2, 4, 8, ...
                warnings.warn(
                    f"{self.name} {said}, on {texts[place][:120]!r}: that completion has no score. "
                    f"So far {self._faults} of {self._scored + self._faults}",
                    stacklevel=2,
                )
        reasons = {f"did not return within {self.limit_seconds:g} seconds": "timeout"}
        return [(v, said if said in ("right", "wrong") else reasons.get(said, "crashed")) for v, said in found]

    def _read(self, outcome: Any) -> tuple[float | None, str]:
        """The score of a worker's outcome, and what there is to say."""
        if outcome.status == "done" and "value" in outcome.value:
            return outcome.value["value"], "right" if outcome.value["value"] == 1.0 else "wrong"
        if outcome.status == "timeout":
            return None, f"did not return within {self.limit_seconds:g} seconds"
        if outcome.status == "crashed":
            return None, "ended its process twice, as running out of memory does"
        return None, outcome.value["fault"] if outcome.status == "done" else f"raised {outcome.value}"


def _plain(row: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(row, default=str))
    except (TypeError, ValueError) as error:
        raise DataError(f"row {row!r:.200} cannot be handed to a checker: {error}") from error


def checker_reward(name: str, *, workers: int = 2, limit_seconds: float = 5.0) -> Reward:
    """The reward that a user's function gives: its score of each completion, None where it has none.

    The function gets the text of a completion and the problem's row: every column of the dataset, and ``prompt``. The
    share of each outcome is logged as ``check/<outcome>``. For arguments and errors see ``Checker``.
    """
    checker = Checker(name, workers=workers, limit_seconds=limit_seconds)

    def check(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        own = {column: values for column, values in columns.items() if column not in PASSED_BY_TRAINER}
        rows = [
            {**{column: values[place] for column, values in own.items()}, "prompt": prompt}
            for place, prompt in enumerate(prompts)
        ]
        found = checker.scores([completion_text(completion) for completion in completions], rows)
        if columns.get("log_metric") and found:
            for outcome in ("right", "wrong", "timeout", "crashed"):
                columns["log_metric"](f"check/{outcome}", sum(said == outcome for _, said in found) / len(found))
        return [value for value, _ in found]

    check.__name__ = checker.function
    check.__dict__["required_columns"] = ()
    return check
