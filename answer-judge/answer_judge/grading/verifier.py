"""Verdicts on the final answers of completions: a value, and the reason for it.

Finding the answer, and comparing texts and plain integers, happens in the caller's process; the mathematics (``judge``)
in worker processes (``pool``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading.answers import boxes_beside, final_answer, joined_boxes, plain_match
from answer_judge.grading.pool import TaskResult, WorkerPool
from answer_judge.grading.rules import DEFAULT_RULE, RULES, Grading, with_details

__all__ = ["REASONS", "RULES", "Verdict", "Verifier", "verify"]

REASONS = ("right", "wrong", "no_answer", "unparsed", "timeout", "crashed")
"""Every reason a verdict can have. Only ``right`` is worth 1."""

LONGEST_ANSWER = 1000
"""Characters; a longer answer is ``unparsed`` unless the gold answer is of that size too. Real ones stay below 250."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one completion is worth, and why."""

    value: float
    """1.0 if the answer is right, else 0.0."""
    reason: str
    """``right``; ``wrong``; ``no_answer``: the completion names none; ``unparsed``: it is no mathematics that is read;
    ``timeout``: judging it took longer than the limit; ``crashed``: judging it ended three workers, as running out of
    memory does."""


Details = Mapping[str, Any] | None
"""What a problem says about its answer, see ``rules.DETAILS``; None says nothing."""

_PROBES = (
    ({"answer": r"\frac{1}{2}", "gold": "0.5"}, "right"),
    ({"answer": r"\frac{1}{3}", "gold": "0.5"}, "wrong"),
    ({"answer": r"(x-1)(x+1)", "gold": r"x^{2}-1"}, "right"),
    ({"answer": r"\frac{\sqrt{12}}{4}", "gold": r"\sin\frac{\pi}{3}"}, "right"),
)
"""What a worker must get right before it is used; it also warms the parser up."""

REFUSED = (
    "compile", "exec", "open", "os.chmod", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.link", "os.mkdir",
    "os.posix_spawn", "os.symlink",
    "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.startfile", "os.system", "os.truncate",
    "os.unlink", "shutil.rmtree", "socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen",
    "ctypes.dlopen",
)  # fmt: skip
"""What a worker refuses once it is ready (``worker``): code from text, writing files, processes, the network."""


class Verifier:
    """Judges answers in worker processes; a context manager, and also shut down when collected and at exit.

    Workers are started at the first answer that needs one and prove on known answers that they can judge: a broken
    installation is an error, not a reward of 0. Threads, event loops, forks and daemonic processes get the same
    verdicts. If the system refuses processes, answers that need none are still judged; others raise ``RewardError``.

    Args:
        workers: processes, >= 1; a setting out of range is a ``ConfigError``.
        limit_seconds: wall-clock seconds for one answer, > 0. A worker that exceeds it is killed and replaced.
        memory_mb: address space of a worker in MiB, where the system can limit it.
    """

    def __init__(self, workers: int = 2, limit_seconds: float = 5.0, memory_mb: int = 1024) -> None:
        try:
            import_module("latex2sympy2_extended")  # the grammar is all that is used of math-verify
            from answer_judge.grading.judge import judge
        except ImportError as error:
            raise ConfigError(
                f"verifying answers needs math-verify's LaTeX grammar ({error}): pip install math-verify"
            ) from error
        self.limit_seconds = limit_seconds
        limits: dict[str, Any] = {"limit_seconds": limit_seconds, "memory_mb": memory_mb, "refused": REFUSED}
        self._pool = WorkerPool(judge, workers=workers, probes=_PROBES, **limits)

    def __enter__(self) -> "Verifier":
        self._pool.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. The next answer that needs one starts them again."""
        self._pool.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers there are now."""
        return self._pool.pids

    def verify(
        self, completion: str | None, answer: str, *, benchmark: str | None = None, details: Details = None
    ) -> Verdict:
        """The verdict on one completion; see ``verify_many``."""
        return self.verify_many([completion], [answer], benchmark=benchmark, details=[details])[0]

    def verify_many(
        self,
        completions: Sequence[str | None],
        answers: Sequence[str],
        *,
        benchmark: str | None = None,
        details: Sequence[Details] | None = None,
    ) -> list[Verdict]:
        """The verdict on each completion, in the order given. Safe to call from any thread.

        Args:
            completions: (B,) texts as generated; None or an empty one, such as a call of a tool, names no answer.
            answers: (B,) gold answers, none empty.
            benchmark: a key of ``RULES``, or None for the default rule.
            details: (B,) see ``Details``.

        Raises:
            ConfigError: an unknown benchmark.
            DataError: text in place of a list, lists of different lengths, a completion that is no text, an empty gold
                answer, or details that cannot be.
            RewardError: workers cannot be started.
        """
        name = DEFAULT_RULE if benchmark is None else benchmark
        if name not in RULES:
            raise ConfigError(f"benchmark={name!r} has no rule: use one of {', '.join(map(repr, RULES))}, or None")
        if isinstance(completions, str) or isinstance(answers, str):
            raise DataError("verify_many takes lists: of one completion, write verify(completion, answer)")
        details = [None] * len(answers) if details is None else details
        if not len(completions) == len(answers) == len(details):
            raise DataError(
                f"{len(completions)} completions but {len(answers)} gold answers and {len(details)} details: give one "
                "per completion"
            )
        _check_golds(answers)
        texts = [_text(row, completion) for row, completion in enumerate(completions)]
        gradings = [with_details(RULES[name], detail) for detail in details]
        reasons = [_plain(*row) for row in zip(texts, answers, gradings, strict=True)]
        tasks = list(dict.fromkeys(reason for reason in reasons if isinstance(reason, tuple)))
        asked = [{**task._asdict(), "grading": asdict(task.grading)} for task in tasks]
        outcomes = self._pool.map(asked) if asked else []
        judged = dict(zip(tasks, map(_reason, outcomes), strict=True))
        final = [judged[reason] if isinstance(reason, tuple) else reason for reason in reasons]
        return [Verdict(1.0 if reason == "right" else 0.0, reason) for reason in final]


@lru_cache(maxsize=1)
def _shared() -> Verifier:
    return Verifier()


def verify(completion: str | None, answer: str, *, benchmark: str | None = None, details: Details = None) -> Verdict:
    r"""The verdict on one completion, by a verifier this process shares: two workers, five seconds an answer.

    >>> verify(r"so it is \boxed{\frac{10}{2}}", "5")
    Verdict(value=1.0, reason='right')

    Arguments and errors are those of ``Verifier.verify_many``, for one completion.
    """
    return _shared().verify(completion, answer, benchmark=benchmark, details=details)


def _text(row: int, completion: Any) -> str:
    """A completion as text."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    raise DataError(
        f"completion {row} is {type(completion).__name__}, expected text. Of a list of messages it is the last one's: "
        "completion[-1]['content']"
    )


def _check_golds(answers: Sequence[str]) -> None:
    empty = [row for row, gold in enumerate(answers) if not (isinstance(gold, str) and gold.strip())]
    if empty:
        raise DataError(
            f"gold answer {empty[0]} is {answers[empty[0]]!r}, expected text that is not empty: "
            "leave such rows out of the dataset"
        )


class _Task(NamedTuple):
    """What a worker is asked: ``beside`` are answers offered with the last one, ``listed`` all of them as one list."""

    answer: str
    beside: tuple[str, ...]
    listed: str | None
    gold: str
    grading: Grading


def _plain(completion: str, gold: str, grading: Grading) -> "str | _Task":
    """The reason where no mathematics is needed, else what is to be judged."""
    answer = final_answer(completion)
    if answer is None:
        return "no_answer"
    beside = boxes_beside(completion)
    agree = [plain_match(part, gold) for part in (answer, *beside)]
    if all(agree) or (False in agree and grading.exact):
        return "right" if all(agree) else "wrong"
    longest = max(LONGEST_ANSWER, 2 * len(gold))
    if max(map(len, (answer, *beside))) > longest:
        return "unparsed"
    listed = joined_boxes(completion)
    if listed is not None and len(listed) > longest:
        listed = None
    return _Task(answer, beside, listed, gold.strip(), grading)


def _reason(outcome: TaskResult) -> str:
    """The reason an outcome of the pool stands for: an exception means that the answer cannot be read."""
    return {"done": str(outcome.value), "raised": "unparsed"}.get(outcome.status, outcome.status)
