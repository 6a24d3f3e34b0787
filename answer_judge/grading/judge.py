r"""Whether an answer is right: the function that runs inside the verifier's workers.

Only the LaTeX grammar of math-verify is used (``latex2sympy``): math-verify's parser of plain expressions hands digits
and operators to Python's ``eval``. See ``grading`` for what happens before and after the grammar.
"""

import re
from functools import lru_cache
from typing import Any

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.compare import same
from answer_judge.grading.equality import is_constant
from answer_judge.grading.options import names_one_option
from answer_judge.grading.patterns import pattern
from answer_judge.grading.reading import read
from answer_judge.grading.rules import Grading
from answer_judge.grading.text import head, tidy
from answer_judge.grading.units import parse_unit

_WHERE = pattern(r"(?<![A-Za-z\\])where\b", {r"ax+b, \text{ where a = 2}": "where"})
_MEANING = pattern(
    r"\s*(?!\d)(?=.*(?<![A-Za-z\\])[A-Za-z])(?!.*\banswer\b)"
    r".*?(?:[<>=]|\\(?:l|g|n)eq?(?![A-Za-z])|\\in(?![A-Za-z])|\b(?:is|are|be|denotes?)\b)",
    {" a = 2": " a =", r"}k\text{ is whole": r"}k\text{ is"},
    re.DOTALL,
)
"""What "where" says of a letter; of "5 where 7" nothing is cut off."""
_WHOLE = pattern(r"\\in ?\\?(?:mathbb|Z)|integer", {r"k \in \mathbb{Z}": r"\in \mathbb"})


def without_where(text: str) -> str:
    """An answer without a final "where a = 2"; a statement that a letter is any whole number stays.

    It is part of a gold answer that makes it.
    """
    found = _WHERE.search(text)
    if not found or _WHOLE.search(text, found.end()) or not _MEANING.match(text, found.end()):
        return text
    return head(text, found.start())


@lru_cache(maxsize=4096)
def _read(text: str, several: bool | None, labels: bool) -> v.Value | None:
    """What a text stands for; None where no rule can read it."""
    try:
        return read(text, several=several, labels=labels)
    except (Unreadable, RecursionError):
        return None


def read_gold(text: str, several: bool | None = None, unit: str = "") -> v.Value | None:
    """What a gold answer stands for; None where no rule can read it, and it can only be compared as text."""
    value = _read(text, several, False)
    return v.Quantity(value, parse_unit(tidy(unit))) if unit and isinstance(value, v.Formula) else value


def judge(task: dict[str, Any]) -> str:
    """``"right"``, ``"wrong"``, or ``"unparsed"`` when the gold answer is mathematics and the answer is not.

    A gold answer that no rule can read is compared as text without white space.

    Args:
        task: ``answer`` and ``gold``, both without delimiters; ``listed``, several answers as one list, for a gold
            answer that is one; ``grading`` with fields of ``Grading``.
    """
    grading = Grading(**task.get("grading", {}))
    gold = read_gold(task["gold"], grading.several, grading.unit)
    if gold is None:
        return "right" if _bare(task["gold"]) == _bare(task["answer"]) else "wrong"
    if _is_option(gold) and not names_one_option(task["answer"]):
        return "wrong"
    found = _judge(gold, task["answer"], grading)
    if found != "right" and task.get("listed") and _is_list(gold):
        return _judge(gold, task["listed"], grading)
    return found


def _judge(gold: v.Value, text: str, grading: Grading) -> str:
    answer = _read(without_where(text), grading.several, _is_number(gold))
    if answer is None or (isinstance(answer, v.Text) and not _has_text(gold)):
        return "unparsed"
    try:
        return "right" if same(gold, answer, grading) else "wrong"
    except Unreadable:
        return "unparsed"


def _is_option(value: v.Value) -> bool:
    """Whether a gold answer names an option, so that an answer with the letters of two is none."""
    return any(isinstance(part, v.Text) and part.option for part in v.readings(value))


def _is_list(value: v.Value) -> bool:
    """Whether a gold answer is several values, or can be read so."""
    return any(isinstance(part, v.Items) and part.brackets in ("", "{}", "ab") for part in v.readings(value))


def _is_number(value: v.Value) -> bool:
    """Whether a gold answer is a number, so that words after an answer can only be a unit."""
    return any(
        isinstance(bare := v.without_unit(part), v.Formula) and (bare is not part or is_constant(bare))
        for part in v.readings(value)
    )


def _has_text(value: v.Value) -> bool:
    return any(isinstance(part, v.Text) for part in v.readings(value))


_SETTING = pattern(r"\\(?:left|right|[,;:! ])|\s", {r"t\left(0": r"\left", "a b": " "})


def _bare(text: str) -> str:
    """A text without white space and the commands that only set it."""
    return _SETTING.sub("", text)
