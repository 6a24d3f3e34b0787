"""Words around an answer, and numbers in groups: text that is put aside or joined before anything is read."""

import re

from dppo.data.grading.text import brackets
from dppo.data.grading.units import changes_value

_CONDITION = re.compile(r",?\s*(?:\\text\{\s*,?\s*)?(?<![A-Za-z])for (?:all|any|every|each)\b.*$")
_PREAMBLE = re.compile(
    r"^(?:\\text\{(?:[^{}]*\b(?:is|are|equals|=|:)|\s*(?:about|approximately|approx\.?|roughly|around))\s*\}\s*[:=]?"
    r"|(?:about|approximately|roughly)\b)\s*(?=\S)"
)
_AGAIN = re.compile(r"\s*\(\s*(or\b|=|\\approx(?![A-Za-z]))([^()]*)\)$")

ASKED = re.compile(r"\\(?:sum|int|prod|lim|det|max|min|gcd|lcm|Pr|mathbb)(?![A-Za-z])|P\s*\(")
"""How a left side begins that we cannot read, but which says what was asked for."""

THOUSANDS = re.compile(r"[-+]?\s*\d{1,3}(?:,\d{3})+")
WITH_DECIMALS = re.compile(rf"{THOUSANDS.pattern}(?:\.\d+)?")
_GROUPED = r"[-+]?\d{1,3}(?:,\d{3})*(?:\.\d+)?"
_GROUPED_LIST = re.compile(rf"{_GROUPED}(?:(?:[,;] (?:and |or )?| and | or ){_GROUPED})+")
_GROUP_OF_ZEROS = re.compile(r"(?<![\d.])([1-9]\d{0,2})((?:,0\d\d)+)(?![\d.]*\d)")


def answer_alone(text: str) -> str:
    """A tidy text without "the answer is" or "about" before it, "for all x" at its end, and brackets around "or 0.5".

    Args:
        text: a tidy text.
    """
    text = _AGAIN.sub(r" \1\2", _CONDITION.sub("", text))
    found = _PREAMBLE.match(text)
    return text[found.end() :].strip() if found and not changes_value(found[0]) else text.strip()


def joined_groups(text: str) -> str:
    """``(1,000, 2)`` as ``(1000, 2)``, since no item begins with a 0 it does not need, and ``1,234, 5,678``.

    Args:
        text: the items of a list, without brackets around it.
    """
    if _GROUPED_LIST.fullmatch(text):
        return re.sub(r",(?=\d)", "", text)
    return _GROUP_OF_ZEROS.sub(lambda found: found[1] + found[2].replace(",", ""), text)


def outer_brackets(text: str) -> tuple[str, str] | None:
    """The brackets around a whole text, or None.

    Raises:
        Unreadable: brackets that do not match.
    """
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    ending = r"\}" if text.endswith(r"\}") else text[-1:]
    if opening not in ("(", "[", "{", r"\{") or ending not in (")", "]", "}", r"\}") or len(text) < 2:
        return None
    outer = [position for position, depth, _ in brackets(text) if depth == 0]
    return (opening, ending) if outer == [0, len(text) - len(ending)] else None
