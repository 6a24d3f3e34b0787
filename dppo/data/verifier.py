"""Whether a completion's final answer is right: a value, and the reason for it.

A ``Rule`` says how one benchmark is judged; ``RULES`` holds the ones known by name. Extracting the answer and the
comparisons that need no mathematics happen in the caller's process; the rest is math-verify in worker processes
(``pool``), under a time limit per answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType

from dppo.data.answers import final_answer, plain_match
from dppo.data.pool import Outcome, WorkerPool
from dppo.errors import ConfigError, DataError

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
    """``right``; ``wrong``; ``no_answer``: the completion names none; ``unparsed``: it names something that is not
    mathematics; ``timeout``: judging it took longer than the limit; ``crashed``: judging it ended a worker twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the completions of one benchmark are judged."""

    name: str
    extract: Callable[[str], str | None] = final_answer
    """The answer a completion commits to, or None."""
    match: Callable[[str, str], bool | None] = plain_match
    """(answer, gold) -> whether they agree, or None to ask math-verify."""


DEFAULT_RULE = Rule(name="default")
RULES: Mapping[str, Rule] = MappingProxyType({DEFAULT_RULE.name: DEFAULT_RULE})
"""Rules by benchmark name."""

_PROBES = (
    ({"answer": r"\frac{1}{2}", "gold": "0.5"}, "right"),
    ({"answer": r"\frac{1}{3}", "gold": "0.5"}, "wrong"),
)


class Verifier:
    """Judges answers in worker processes; a context manager, and also shut down when collected and at exit.

    Workers are started at the first answer that needs one and prove on two known answers that they can judge: a
    broken installation is an error at once, not a reward of 0 for ever.

    Args:
        workers: processes, >= 1.
        limit_seconds: wall-clock seconds for one answer, > 0. A worker that exceeds it is killed and replaced.
        memory_mb: address space of a worker in MiB, where the system can limit it.

    Raises:
        ConfigError: a setting out of range.
    """

    def __init__(self, workers: int = 2, limit_seconds: float = 5.0, memory_mb: int = 1024) -> None:
        try:
            from dppo.data.judge import judge
        except ImportError as error:
            raise ConfigError(f"verifying answers needs math-verify ({error}): pip install 'dppo[trl]'") from error
        self._pool = WorkerPool(
            judge, workers=workers, limit_seconds=limit_seconds, memory_mb=memory_mb, probes=_PROBES
        )

    def __enter__(self) -> "Verifier":
        self._pool.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. The next answer that needs one starts them again."""
        self._pool.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers there are now."""
        return self._pool.pids

    def verify(self, completion: str, answer: str, *, benchmark: str | None = None) -> Verdict:
        """The verdict on one completion; see ``verify_many``."""
        return self.verify_many([completion], [answer], benchmark=benchmark)[0]

    def verify_many(
        self, completions: Sequence[str], answers: Sequence[str], *, benchmark: str | None = None
    ) -> list[Verdict]:
        """The verdict on each completion, in the order given. Safe to call from any thread.

        Args:
            completions: (B,) texts as generated.
            answers: (B,) gold answers, none empty.
            benchmark: a key of ``RULES``, or None for the default rule.

        Raises:
            ConfigError: an unknown benchmark.
            DataError: lists of different lengths, or an empty gold answer.
            RewardError: workers cannot be started.
        """
        rule = _rule(benchmark)
        if len(completions) != len(answers):
            raise DataError(f"{len(completions)} completions but {len(answers)} gold answers: give one per completion")
        empty = [row for row, gold in enumerate(answers) if not (isinstance(gold, str) and gold.strip())]
        if empty:
            raise DataError(
                f"gold answer {empty[0]} is {answers[empty[0]]!r}, expected text that is not empty: "
                "run check_problems(dataset) before training"
            )
        reasons = [_plain(rule, text, gold) for text, gold in zip(completions, answers, strict=True)]
        tasks = {reason: "" for reason in reasons if isinstance(reason, tuple)}
        outcomes = self._pool.map([{"answer": answer, "gold": gold} for answer, gold in tasks]) if tasks else []
        judged = dict(zip(tasks, map(_reason, outcomes), strict=True))
        final = [judged[reason] if isinstance(reason, tuple) else reason for reason in reasons]
        return [Verdict(1.0 if reason == "right" else 0.0, reason) for reason in final]


def _rule(benchmark: str | None) -> Rule:
    """The rule of a benchmark."""
    name = DEFAULT_RULE.name if benchmark is None else benchmark
    if name not in RULES:
        raise ConfigError(f"benchmark={name!r} has no rule: use one of {', '.join(map(repr, RULES))}, or None")
    return RULES[name]


def _plain(rule: Rule, completion: str, gold: str) -> str | tuple[str, str]:
    """The reason where no mathematics is needed, else the (answer, gold) pair to be judged."""
    answer = rule.extract(completion)
    if answer is None:
        return "no_answer"
    agree = rule.match(answer, gold)
    if agree is not None:
        return "right" if agree else "wrong"
    if len(answer) > max(LONGEST_ANSWER, 2 * len(gold)):
        return "unparsed"
    return answer, gold.strip()


def _reason(outcome: Outcome) -> str:
    """The reason an outcome of the pool stands for: an exception means that the answer cannot be read."""
    return {"done": str(outcome.value), "raised": "unparsed"}.get(outcome.status, outcome.status)
