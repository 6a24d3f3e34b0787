"""The function that judges an answer, inside of the verifier's workers."""

from functools import lru_cache
from typing import Any

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.compare import same
from answer_judge.grading.equality import is_constant
from answer_judge.grading.patterns import pattern
from answer_judge.grading.reading import read
from answer_judge.grading.rules import Grading
from answer_judge.grading.text import tidy
from answer_judge.grading.units import parse_unit
from answer_judge.grading.words import names_one_option


@lru_cache(maxsize=4096)
def _read(text: str, several: bool | None, labels: bool) -> v.Value | None:
    """What a text stands for; None where no rule can read it."""
    try:
        return read(text, several=several, labels=labels)
    except (Unreadable, RecursionError):
        return None


_AMOUNT = pattern(r"\s*[-+]?\d[^\\]*? (?P<unit>[A-Za-z][^\\]*)", ("9.8 m/s^2", "1,200 kWh", "1 1/2 kg"))
"""A number and words behind a space, which may be a product of letters too."""
_FACTORS = pattern(r"(?:[A-Za-z] )+[A-Za-z]|(?![mgsJNW])[A-Za-z]", ("m g h", "A"))
"""Letters that are factors rather than units."""


def read_gold(text: str, several: bool | None = None, unit: str = "") -> v.Value | None:
    """What a gold answer stands for; None where no rule can read it, and it can only be compared as text."""
    value = _read(text, several, False) or _read(text, several, True)
    if value is not None and (found := _AMOUNT.fullmatch(text)) and _FACTORS.fullmatch(found["unit"]) is None:
        amount = _read(text, several, True)
        if isinstance(amount, v.Quantity) and isinstance(amount.value, v.Number) and not amount.unit.label:
            value = v.Either((*v.readings(value), amount))
    if not unit or not isinstance(value, v.Formula):
        return value
    measure = parse_unit(tidy(unit))
    return v.Quantity(value, measure) if not measure.label else value


_AS_TEXT = pattern(
    r"\$?(?:\d{1,4}(?:[-–—−]\d{1,4}){1,2}|[-+]?\d[\d.]*,\d{1,2}(?:(?!and|or)[A-Za-z]{2,}[^,;]*|\\?[%€£$°]))\$?",
    ("10-20", "3–2", "2024-05-01", "3,5cm", r"1.250,50€", r"12,5\%"),
)
"""Ranges, scores, dates and decimal commas: not differences and lists."""


def judge(task: dict[str, Any]) -> str:
    """``"right"``, ``"wrong"``, or ``"unparsed"`` where the gold answer is mathematics and the answer is not.

    The task has ``answer``, ``gold``, perhaps ``beside`` (answers offered with it, which must be right too), ``listed``
    (all of them as one list) and fields of ``Grading``. A gold answer that no rule can read is compared as text without
    white space.
    """
    grading = Grading(**task.get("grading", {}))
    written, answers = task["gold"], (task["answer"], *task.get("beside", ()))
    gold = None if _AS_TEXT.fullmatch(_bare(written)) else read_gold(written, grading.several, grading.unit)
    if gold is None:
        return "right" if {_bare(written)} == set(map(_bare, answers)) else "wrong"
    readings = v.readings(gold)
    texts = [part for part in readings if isinstance(part, v.Text)]
    if any(text.option for text in texts) and not all(map(names_one_option, answers)):
        return "wrong"
    found = next((no for one in answers if (no := _judge(gold, one, grading, bool(texts))) != "right"), "right")
    is_list = any(isinstance(part, v.Items) and part.brackets in ("", "{}") for part in readings)
    if found != "right" and task.get("listed") and is_list:
        return _judge(gold, task["listed"], grading, bool(texts))
    return found


def _judge(gold: v.Value, text: str, grading: Grading, has_text: bool) -> str:
    labels = _is_number(gold)
    letters = any(isinstance(part, v.Expression) and not is_constant(part) for part in v.readings(gold))
    if labels and letters and _verdict(gold, text, grading, has_text, labels=False) == "right":
        return "right"  # 5 m/s is a product of letters, too
    return _verdict(gold, text, grading, has_text, labels=labels)


def _verdict(gold: v.Value, text: str, grading: Grading, has_text: bool, *, labels: bool) -> str:
    answer = _read(text, grading.several, labels)
    if answer is None or (isinstance(answer, v.Text) and not has_text):
        return "unparsed"
    try:
        return "right" if same(gold, answer, grading) else "wrong"
    except Unreadable:
        return "unparsed"


def _is_number(value: v.Value) -> bool:
    """True if a gold answer is a number, so that words after an answer can only be a unit."""
    return any(
        isinstance(bare := v.without_unit(part), v.Formula) and (bare is not part or is_constant(bare))
        for part in v.readings(value)
    )


_SETTING = pattern(r"\\(?:left|right|[,;:! ])|\s", {r"t\left(0": r"\left", "a b": " "})
_WORDS = pattern(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|mbox)\s*\{([^{}]*)\}", (r"\text{Plan B}",))


def _bare(text: str) -> str:
    """A text without white space and the commands that only set it; of letters alone, in lower case."""
    bare = _SETTING.sub("", _WORDS.sub(r"\1", text)).removesuffix(".")
    return bare.casefold() if bare.replace("'", "").replace("-", "").isalpha() else bare
