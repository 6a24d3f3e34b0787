r"""Whether an answer is right: the function that runs inside the verifier's workers.

Only the LaTeX grammar of math-verify is used (``latex2sympy``): math-verify's parser of plain expressions hands digits
and operators to Python's ``eval``. See ``grading`` for what happens before and after the grammar.
"""

import re
from functools import lru_cache
from typing import Any

from dppo.data.grading.compare import same
from dppo.data.grading.reading import read
from dppo.data.grading.text import Unreadable, tidy
from dppo.data.grading.units import parse_unit
from dppo.data.grading.values import Either, Expression, Items, Number, Quantity, Text, Value
from dppo.data.rules import Grading


@lru_cache(maxsize=4096)
def read_gold(text: str, several: bool | None = None, unit: str = "") -> Value | None:
    """What a gold answer stands for; None where no rule can read it, and it can only be compared as text."""
    try:
        value = read(text, several=several)
    except (Unreadable, RecursionError):
        return None
    if unit and isinstance(value, (Number, Expression)):
        return Quantity(value, parse_unit(tidy(unit)))
    return value


_WHERE = re.compile(r"[\s,;]*(?:\\q?quad)?\s*(?:\\(?:text|mbox|textrm)\s*\{[\s,]*)?(?<![A-Za-z])where\b.*$", re.DOTALL)
"""What an answer's letters stand for, at its end. A gold answer that says so is no answer without it."""


@lru_cache(maxsize=1024)
def _read_answer(text: str, several: bool | None, labels: bool) -> Value | None:
    try:
        return read(_WHERE.sub("", text), several=several, labels=labels)
    except (Unreadable, RecursionError):
        return None


def judge(task: dict[str, Any]) -> str:
    """``"right"``, ``"wrong"``, or ``"unparsed"`` when the gold answer is mathematics and the answer is not.

    A gold answer that no rule can read is compared as text without white space.

    Args:
        task: ``answer`` and ``gold``, both without delimiters; ``listed``, several answers as one list, for a gold
            answer that is one; ``grading`` with fields of ``Grading`` that differ from its defaults.
    """
    grading = Grading(**task.get("grading", {}))
    gold = read_gold(task["gold"], grading.several, grading.unit)
    if gold is None:
        return "right" if _bare(task["gold"]) == _bare(task["answer"]) else "wrong"
    found = _judge(gold, task["answer"], grading)
    if found != "right" and "listed" in task and _is_list(gold):
        return _judge(gold, task["listed"], grading)
    return found


def _judge(gold: Value, text: str, grading: Grading) -> str:
    """The verdict on one text."""
    answer = _read_answer(text, grading.several, _is_number(gold))
    if answer is None or (isinstance(answer, Text) and not _has_text(gold)):
        return "unparsed"
    try:
        return "right" if same(gold, answer, grading) else "wrong"
    except Unreadable:
        return "unparsed"


def _is_list(value: Value) -> bool:
    """Whether a gold answer is several values, or can be read so."""
    values = value.values if isinstance(value, Either) else (value,)
    return any(isinstance(part, Items) and part.brackets in ("", "{}") for part in values)


def _is_number(value: Value) -> bool:
    """Whether a gold answer is a number, so that words after an answer can only be a unit."""
    values = value.values if isinstance(value, Either) else (value,)
    return any(
        isinstance(part.value if isinstance(part, Quantity) else part, (Number, Expression))
        and (isinstance(part, (Number, Quantity)) or not _letters(part))
        for part in values
    )


def _letters(value: Value) -> bool:
    return isinstance(value, Expression) and bool(value.tree.free_symbols)


def _has_text(value: Value) -> bool:
    return isinstance(value, Text) or (isinstance(value, Either) and any(isinstance(v, Text) for v in value.values))


def _bare(text: str) -> str:
    """A text without white space and the commands that only set it."""
    return re.sub(r"\\(?:left|right|[,;:! ])|\s", "", text)
