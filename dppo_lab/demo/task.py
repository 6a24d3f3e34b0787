"""The embedded task: chains of one-digit sums with exact answers, an imperfect teacher, and a reward.

``5+6+5-2=?`` is answered by ``5+6=11;11+5=16;16-2=14;\\boxed{14}``. The level of a question is its number of
operands.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from dppo.errors import DataError
from dppo.rng import Purpose, generator

_BOXED = re.compile(r"\\boxed\{(-?[0-9]{1,6})\}\s*\Z")


@dataclass(frozen=True, slots=True)
class ArithmeticProblem:
    """One question with its exact answer."""

    question: str
    """Such as ``5+6+5-2=?``."""
    answer: int
    """The exact total, >= 0."""
    level: int
    """Number of operands, >= 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The errors of demonstrations, which reinforcement learning has to correct: the teacher gets tired.

    A slip adds 1 to 3 to a running total and to all later ones. Slips only add, so two never cancel: a chain with a
    slip is always wrong, and long chains are nearly always wrong.
    """

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
    """Which levels are asked, in three bands of equal size, and the teacher a policy is warmed up on."""

    easy: tuple[int, ...]
    """Levels that a warmed-up policy nearly always solves."""
    middle: tuple[int, ...]
    """Levels it solves sometimes."""
    hard: tuple[int, ...]
    """Levels it nearly never solves: the teacher nearly always slips there."""
    largest_total: int
    """True running totals are within 0..largest_total, >= 9; a blind guess is right once in about as many times."""
    teacher: Teacher
    warm_up_steps: int
    """Steps of ``warm_up`` after which the bands are as named."""

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
"""As poor in signal as reported runs of large models: most groups of 8 are all right or all wrong, and stay so for an
epoch. Slips begin sharply, and few sums with much practice make the easy band sure. Measured in docs/tasks.md.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training and held-out problems that share no question."""

    train: tuple[ArithmeticProblem, ...]
    held_out: tuple[ArithmeticProblem, ...]


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the held-out quarter, by a checksum of its text: the same for every seed.

    Training questions and warm-up demonstrations are never held out, so no run has seen a held-out question.
    """
    return zlib.crc32(question.encode()) % 4 == 0


def draw_problem(level: int, rng: np.random.Generator, *, held_out: bool, largest_total: int = 20) -> ArithmeticProblem:
    """A random problem with ``level`` operands, held out or not.

    Every operand is uniform over the signed digits that keep the running total within 0..largest_total.
    """
    while True:
        total = int(rng.integers(10))
        question = str(total)
        for _ in range(level - 1):
            terms = [term for term in range(-9, 10) if 0 <= total + term <= largest_total]
            term = terms[int(rng.integers(len(terms)))]
            total += term
            question += f"{term:+d}"
        question += "=?"
        if is_held_out(question) == held_out:
            return ArithmeticProblem(question, total, level)


def make_split(seed: int, *, train: int = 192, held_out: int = 192, task: ArithmeticTask = FULL) -> Split:
    """Training and held-out problems for a seed: a third from each band, spread evenly over its levels.

    No question occurs twice, and no held-out question is, as a string, a training question or a warm-up demonstration.
    Training questions may occur in the warm-up; at level 2, with 145 questions in all (100 in ``QUICK``), most do.
    ``3+5=?`` and ``5+3=?`` are two questions.
    """
    rng = generator(seed, Purpose.TASK)
    return Split(
        train=_distinct(train, task, rng, held_out=False), held_out=_distinct(held_out, task, rng, held_out=True)
    )


def _distinct(
    count: int, task: ArithmeticTask, rng: np.random.Generator, *, held_out: bool
) -> tuple[ArithmeticProblem, ...]:
    """``count`` problems with different questions, in random order."""
    bands = (task.easy, task.middle, task.hard)
    found: dict[str, ArithmeticProblem] = {}
    for index in range(count):
        band = bands[index % len(bands)]
        level = band[index // len(bands) % len(band)]
        for _ in range(1000):
            problem = draw_problem(level, rng, held_out=held_out, largest_total=task.largest_total)
            if problem.question not in found:
                found[problem.question] = problem
                break
        else:
            side = "held_out" if held_out else "train"
            raise DataError(
                f"{side}={count} asks for more different questions with {level} operands than there are: "
                f"found {sum(p.level == level for p in found.values())}. Ask for fewer, or use longer chains, "
                f"for example make_split(seed, {side}=96)"
            )
    return tuple(list(found.values())[i] for i in rng.permutation(count))


def solution(problem: ArithmeticProblem) -> str:
    """The right answer with every step written out."""
    return _written(_terms(problem.question), [0] * problem.level)


def demonstration(problem: ArithmeticProblem, teacher: Teacher, rng: np.random.Generator) -> str:
    """The answer of the imperfect teacher, with every step written out."""
    terms = _terms(problem.question)
    totals = np.cumsum(terms)
    room = teacher.largest_total - np.maximum.accumulate(totals[::-1])[::-1]  # keeps later totals in range
    offsets = [0]
    for step in range(1, problem.level):
        slip = int(rng.integers(1, 4)) if rng.random() < teacher.slip_chance(step) else 0
        offsets.append(min(offsets[-1] + slip, int(room[step])))
    return _written(terms, offsets)


def _terms(question: str) -> list[int]:
    """The signed operands of a question."""
    return [int(term) for term in re.findall(r"[+-]?[0-9]", question)]


def _written(terms: list[int], offsets: list[int]) -> str:
    """The steps as text, with ``offsets[i]`` added to the running total after operand ``i``."""
    text, total = "", terms[0]
    for step in range(1, len(terms)):
        after = sum(terms[: step + 1]) + offsets[step]
        text += f"{total}{terms[step]:+d}={after};"
        total = after
    return f"{text}\\boxed{{{total}}}"


def reward(completion_text: str, answer: int) -> float:
    """1.0 if the text has exactly one ``\\boxed{...}``, at its end and with the right number, else 0.0."""
    boxed = _BOXED.search(completion_text)
    return float(boxed is not None and completion_text.count("\\boxed") == 1 and int(boxed[1]) == answer)


def score(completions: list[Any], answer: list[int], **_: Any) -> list[float]:
    """``reward`` of each completion, a text or a conversation, as a reward function of TRL."""
    texts = [item if isinstance(item, str) else item[-1]["content"] for item in completions]
    return [reward(text, int(number)) for text, number in zip(texts, answer, strict=True)]
