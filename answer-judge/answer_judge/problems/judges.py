"""What judges the completions of a set, by its rule: the verifier, the sandbox, or a user's function."""

import hashlib
import inspect
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import answer_judge.sandbox
from answer_judge.errors import DataError
from answer_judge.grading import Verdict, Verifier
from answer_judge.problems.checkers import Checker, find_checker, is_check
from answer_judge.problems.code import FORMATS, task_of
from answer_judge.problems.rewards import PASSED_BY_TRAINER, Reward, completion_text, log_verdicts
from answer_judge.sandbox import VERDICTS, Limits, Sandbox

CODE_REASONS = (*VERDICTS, "no_answer")
"""Every reason a verdict on a program can have."""


def programs_judged(sandbox: Sandbox, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
    """The verdict on the program in each completion: 1 if it passes all tests. Equal ones are run once.

    ``DataError``: as many answers as completions are needed, each with tests. Other errors are ``Sandbox.run_many``'s.
    """
    if len(completions) != len(answers):
        raise DataError(f"{len(completions)} completions but {len(answers)} answers: give one of each")
    asked = [task_of(completion or "", answer) for completion, answer in zip(completions, answers, strict=True)]
    tasks = list(dict.fromkeys(task for task in asked if task is not None))
    outcomes = dict(zip(tasks, sandbox.run_many(tasks), strict=True)) if tasks else {}
    reasons = ["no_answer" if task is None else outcomes[task].verdict for task in asked]
    return [Verdict(1.0 if reason == "right" else 0.0, reason) for reason in reasons]


class Judges(AbstractContextManager["Judges"]):
    """Judges completions by the rule of their set; a context manager. Each kind of judge starts when it is needed.

    Arguments are those of ``Verifier``, ``Checker`` and ``Sandbox``; ``ConfigError``: one is out of range.
    """

    def __init__(
        self,
        workers: int = 2,
        limit_seconds: float = 5.0,
        limits: Limits | None = None,
        accept_weak_sandbox: bool = False,
    ) -> None:
        self.workers, self.limit_seconds = workers, limit_seconds
        self.verifier = Verifier(workers=workers, limit_seconds=limit_seconds)
        self.sandbox = Sandbox(workers=workers, limits=limits, accept_weak=accept_weak_sandbox)
        self.checkers: dict[str, Checker] = {}

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for judge in (self.verifier, self.sandbox, *self.checkers.values()):
            judge.close()

    def verify_many(
        self,
        completions: Sequence[str],
        answers: Sequence[str],
        *,
        benchmark: str | None = None,
        details: Sequence[Any] | None = None,
    ) -> list[Verdict]:
        """The verdict on each completion by the rule ``benchmark``; see ``Verifier.verify_many`` for what is not code.

        A completion that a checker could not score counts 0. Errors are the judge's.
        """
        if benchmark in FORMATS:
            return programs_judged(self.sandbox, completions, answers)
        if benchmark is None or not is_check(benchmark):
            return self.verifier.verify_many(completions, answers, benchmark=benchmark, details=details)
        if benchmark not in self.checkers:
            self.checkers[benchmark] = Checker(benchmark, workers=self.workers, limit_seconds=self.limit_seconds)
        found = self.checkers[benchmark].scores(completions, [json.loads(answer) for answer in answers])
        return [Verdict(value or 0.0, reason) for value, reason in found]


def judged_by(rule: str | None) -> dict[str, str]:
    """What judges by a rule, by its content: empty for the verifier, whose versions are known elsewhere."""
    if rule in FORMATS:
        root = Path(answer_judge.sandbox.__file__).parent
        files = [*sorted(root.glob("*.py")), Path(__file__).with_name("code.py")]
    elif rule is not None and is_check(rule):
        files = [Path(inspect.getsourcefile(inspect.unwrap(find_checker(rule))) or __file__)]
    else:
        return {}
    return {str(rule): hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]}


def code_tests(
    *,
    answer_column: str = "answer",
    sandbox: Sandbox | None = None,
    workers: int = 2,
    limits: Limits | None = None,
    accept_weak_sandbox: bool = False,
) -> Reward:
    """A reward of 1.0 for a program that passes its problem's tests and 0.0 for any other, run in the sandbox.

    The share of each reason (``CODE_REASONS``) is logged as ``code/<reason>`` where the trainer offers logging.

    ``answer_column`` holds the tests, as ``load_problems`` makes it of HumanEval's or MBPP's columns. ``sandbox`` is to
    be shared; by default the reward has its own, with the other arguments, see ``Sandbox``.
    The reward raises ``ConfigError`` if too little confines programs, and ``DataError`` for a column that is missing or
    holds no tests.
    """
    used = sandbox or Sandbox(workers=workers, limits=limits, accept_weak=accept_weak_sandbox)

    def tested(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        if answer_column not in columns:
            present = ", ".join(repr(name) for name in columns if name not in PASSED_BY_TRAINER) or "none"
            raise DataError(f"code_tests needs a column {answer_column!r} with tests, but the dataset has {present}")
        texts = [completion_text(completion) for completion in completions]
        verdicts = programs_judged(used, texts, columns[answer_column])
        log_verdicts(columns, "code", CODE_REASONS, [verdict.reason for verdict in verdicts])
        return [verdict.value for verdict in verdicts]

    tested.__name__ = "code_tests"
    tested.__dict__.update(required_columns=(answer_column,), text_columns=(answer_column,), sandbox=used)
    return tested
