"""The embedded task: chains of one-digit sums with exact answers, an imperfect teacher, and a reward.

``5+6+5-2=?`` is answered by ``5+6=11;11+5=16;16-2=14;\\boxed{14}``. The level of a question is its number of
operands.
"""

import math
import re
import zlib
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from dppo.errors import DataError
from dppo.rng import Purpose, generator

WRONG_BY = (30, 60)
"""A wrong gold answer is beyond the total by at least the first and less than the second: no policy says one."""
DOUBTS = (0.45, 0.55, 0.65)
"""Chances that a demonstration has an entry of the table wrong, each of a third of the entries."""
MIDDLE, HARD = 1, 2
"""Places of these bands in the shares of a task."""
_BOXED = re.compile(r"\\boxed\{(-?[0-9]{1,6})\}\s*\Z")


@dataclass(frozen=True, slots=True)
class ArithmeticProblem:
    """One question with its exact answer."""

    question: str
    """Such as ``5+6+5-2=?``."""
    answer: int
    """The exact total, >= 0; of a problem whose gold answer is wrong, a number beyond every total."""
    level: int
    """Number of operands, >= 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Errors of demonstrations: a slip adds 1 to 3 to a running total and to all later ones, so two never cancel."""

    sure_steps: int
    """Steps at the start of a chain that never slip."""
    slip_growth: float
    """Growth of the chance of a slip with every step after those."""
    largest_total: int
    """A slip that would carry a running total beyond this is made smaller."""

    def slip_chance(self, step: int) -> float:
        """Chance, in [0, 1], that a step slips; the first step is 1."""
        return min(1.0, self.slip_growth * max(0, step - self.sure_steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticTask:
    """Levels of questions in three bands, and the teacher of the warm-up."""

    easy: tuple[int, ...]
    """Levels that a warmed-up policy nearly always solves."""
    middle: tuple[int, ...]
    """Levels that it solves sometimes."""
    hard: tuple[int, ...]
    """Levels that it nearly never solves."""
    largest_total: int
    """Largest running total, >= 9; the smallest is 0."""
    teacher: Teacher
    warm_up_steps: int
    """Steps of ``warm_up`` after which the bands are as named."""
    sureness: float = 1.0
    """Factor of the logits after the warm-up, > 0."""
    shares: tuple[int, int, int] = (1, 1, 1)
    """Training problems of each band, easy to hard, in parts of their sum."""
    held_out_shares: tuple[int, int, int] = (1, 1, 1)
    """The same of held-out problems."""
    table: tuple[int, ...] = ()
    """Digits of the last step in problems of the middle band, which is looked up; see ``looked_up``."""
    wrong_golds: bool = False
    """True if training problems of the hard band have a wrong gold answer, ``WRONG_BY`` beyond the total."""

    @property
    def levels(self) -> tuple[int, ...]:
        """All levels, ascending."""
        return tuple(sorted({*self.easy, *self.middle, *self.hard}))


FULL = ArithmeticTask(
    easy=(2, 3, 4),
    middle=(6, 7, 8),
    hard=(10, 11, 12),
    largest_total=20,
    teacher=Teacher(sure_steps=3, slip_growth=0.11, largest_total=29),
    warm_up_steps=900,
)
"""The task of the demonstration."""

QUICK = ArithmeticTask(
    easy=(2, 3, 4),
    middle=(5, 6),
    hard=(8, 9),
    largest_total=9,
    teacher=Teacher(sure_steps=3, slip_growth=0.2, largest_total=15),
    warm_up_steps=360,
)
"""Shorter chains and fewer sums to learn: a third of the time."""

SPARSE = ArithmeticTask(
    easy=(2, 3, 4),
    middle=(6, 7),
    hard=(10, 11, 12),
    largest_total=9,
    teacher=Teacher(sure_steps=4, slip_growth=0.35, largest_total=15),
    warm_up_steps=1000,
)
"""Most groups of 8 are all right or all wrong, as in reported runs of large models: docs/tasks.md."""

SILENT = ArithmeticTask(
    easy=(3, 4),
    middle=(6, 7),
    hard=(6, 7),
    largest_total=12,
    teacher=Teacher(sure_steps=7, slip_growth=0.0, largest_total=12),
    warm_up_steps=1000,
    sureness=1.1,
    shares=(5, 3, 2),
    held_out_shares=(0, 1, 0),
    table=(2, 3, 4, 5, 6, 7),
    wrong_golds=True,
)
"""5 of 10 problems are mastered, and 2 have wrong gold answers. The other 3 have a signal for epochs: each depends on
one of 78 entries of a table without a rule. Measured in docs/tasks.md."""

RARE = replace(
    FULL, easy=(3, 4), middle=(9, 10), hard=(6, 7), shares=(12, 3, 5), held_out_shares=(0, 1, 0), wrong_golds=True
)
"""12 of 20 problems are nearly mastered, 5 have wrong gold answers, and 3 are solved once in 8 to 25 answers at the
start. Measured in docs/tasks.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training and held-out problems that share no question."""

    train: tuple[ArithmeticProblem, ...]
    held_out: tuple[ArithmeticProblem, ...]


def is_held_out(question: str) -> bool:
    """True for the held-out quarter of questions, by a checksum of the text; no run trains on them."""
    return zlib.crc32(question.encode()) % 4 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Right and wrong result of a step that is looked up."""

    right: int
    wrong: int
    """The result in a demonstration that has the entry wrong."""
    doubt: float
    """The chance of that."""


def looked_up(total: int, digit: int) -> Entry:
    """The entry of the table at ``total*digit``: digits by a checksum, so no entry follows from another."""
    own = zlib.crc32(f"{total}*{digit}".encode())
    right, rest = own % 10, own // 10
    return Entry(right=right, wrong=(right + 1 + rest % 9) % 10, doubt=DOUBTS[rest // 9 % len(DOUBTS)])


def draw_problem(
    level: int,
    rng: np.random.Generator,
    *,
    held_out: bool,
    largest_total: int = 20,
    table: tuple[int, ...] = (),
) -> ArithmeticProblem:
    """A random problem with ``level`` operands, uniform over digits that keep running totals in 0..largest_total.

    With a table the last operand is ``*`` and one of its digits, and the answer is the entry at the total before it.
    """
    while True:
        total = int(rng.integers(10))
        question = str(total)
        for _ in range(level - 1 - bool(table)):
            terms = [term for term in range(-9, 10) if 0 <= total + term <= largest_total]
            term = terms[int(rng.integers(len(terms)))]
            total += term
            question += f"{term:+d}"
        if table:
            digit = table[int(rng.integers(len(table)))]
            total, question = looked_up(total, digit).right, f"{question}*{digit}"
        question += "=?"
        if is_held_out(question) == held_out:
            return ArithmeticProblem(question, total, level)


def make_split(seed: int, *, train: int = 192, held_out: int = 192, task: ArithmeticTask = FULL) -> Split:
    """Training and held-out problems for a seed: each band's share of them, spread evenly over its levels.

    No question occurs twice. Training questions may occur in the warm-up, held-out ones never do.
    """
    rng = generator(seed, Purpose.TASK)
    first = _distinct(train, task, rng, held_out=False)
    return Split(train=first, held_out=_distinct(held_out, task, rng, held_out=True))


def _distinct(
    count: int, task: ArithmeticTask, rng: np.random.Generator, *, held_out: bool
) -> tuple[ArithmeticProblem, ...]:
    """``count`` problems with different questions, in random order."""
    shares = task.held_out_shares if held_out else task.shares
    turns = [band for band, share in enumerate(shares) for _ in range(share)]
    levels = [cycle(band) for band in (task.easy, task.middle, task.hard)]
    found: dict[str, ArithmeticProblem] = {}
    for band in islice(cycle(turns), count):
        level = next(levels[band])
        for _ in range(1000):
            table = task.table if band == MIDDLE else ()
            problem = draw_problem(level, rng, held_out=held_out, largest_total=task.largest_total, table=table)
            if problem.question not in found:
                wrong = task.wrong_golds and not held_out and band == HARD
                beyond = int(rng.integers(*WRONG_BY)) if wrong else 0
                found[problem.question] = replace(problem, answer=problem.answer + beyond)
                break
        else:
            side = "held_out" if held_out else "train"
            raise DataError(
                f"{side}={count}: there are not as many different questions with {level} operands. Ask for fewer, for "
                f"example make_split(seed, {side}=96)"
            )
    return tuple(list(found.values())[i] for i in rng.permutation(count))


def solution(problem: ArithmeticProblem) -> str:
    """The right answer with every step written out."""
    terms, digit = _parts(problem.question)
    return _written(terms, [0] * len(terms), digit, None)


def demonstration(problem: ArithmeticProblem, teacher: Teacher, rng: np.random.Generator) -> str:
    """The answer of the imperfect teacher, with every step written out."""
    terms, digit = _parts(problem.question)
    totals = np.cumsum(terms)
    room = teacher.largest_total - np.maximum.accumulate(totals[::-1])[::-1]  # keeps later totals in range
    offsets = [0]
    for step in range(1, len(terms)):
        slip = int(rng.integers(1, 4)) if rng.random() < teacher.slip_chance(step) else 0
        offsets.append(min(offsets[-1] + slip, int(room[step])))
    return _written(terms, offsets, digit, rng)


def teacher_rate(problem: ArithmeticProblem, task: ArithmeticTask) -> float:
    """Chance, in [0, 1], that a demonstration has the gold answer; a slip that is cut to nothing counts as one."""
    if reward(solution(problem), problem.answer) == 0:
        return 0.0
    terms, digit = _parts(problem.question)
    doubt = 0.0 if digit is None else looked_up(sum(terms), digit).doubt
    return math.prod(1 - task.teacher.slip_chance(step) for step in range(1, len(terms))) * (1 - doubt)


def _parts(question: str) -> tuple[list[int], int | None]:
    """The signed operands of a question, and the digit by which the last step is looked up, if any."""
    sums, _, digit = question.partition("*")
    return [int(term) for term in re.findall(r"[+-]?[0-9]", sums)], int(digit[0]) if digit else None


def _written(terms: list[int], offsets: list[int], digit: int | None, rng: np.random.Generator | None) -> str:
    """The steps as text, with ``offsets[i]`` added to the running total after operand ``i``.

    A last step by ``digit`` is looked up, with ``rng`` at times wrongly.
    """
    text, total = "", terms[0]
    for step in range(1, len(terms)):
        after = sum(terms[: step + 1]) + offsets[step]
        text, total = f"{text}{total}{terms[step]:+d}={after};", after
    if digit is not None:
        entry = looked_up(total, digit)
        after = entry.wrong if rng is not None and rng.random() < entry.doubt else entry.right
        text, total = f"{text}{total}*{digit}={after};", after
    return f"{text}\\boxed{{{total}}}"


def reward(completion_text: str, answer: int) -> float:
    """1.0 if the text has exactly one ``\\boxed{...}``, at its end and with the right number, else 0.0."""
    boxed = _BOXED.search(completion_text)
    return float(boxed is not None and completion_text.count("\\boxed") == 1 and int(boxed[1]) == answer)


def score(completions: list[Any], answer: list[int], **_: Any) -> list[float]:
    """``reward`` of each completion, a text or a conversation, as a reward function of TRL."""
    texts = [item if isinstance(item, str) else item[-1]["content"] for item in completions]
    return [reward(text, int(number)) for text, number in zip(texts, answer, strict=True)]
