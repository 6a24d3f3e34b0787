"""Notation of other countries and fields, rewritten in the usual one: pure functions of tidy texts."""

import re

from answer_judge.grading.patterns import pattern

_SQUARE = pattern(r"[\[\]]", {"(1,2]": "]"})
_ENDS = pattern(r"[^\[\],;]+[,;][^\[\],;]+", ("0,5", r"-\infty; 2", r"\frac{1}{2},f(1)"))
_INDEX = r"(?:\{ ?\d{1,4} ?\}|\d)"
_COUNTED = pattern(
    rf"(?<![A-Za-z\\])(?P<kind>[CPA]) ?(?:_ ?(?P<n>{_INDEX}) ?\^ ?(?P<k>{_INDEX})"
    rf"|\^ ?(?P<l>{_INDEX}) ?_ ?(?P<m>{_INDEX}))",
    {"2C_{10}^3": "C_{10}^3", "A^2_5": "A^2_5"},
)
_UPRIGHT = pattern(rf"\\text\{{ ?([CPA]) ?\}}(?= ?[_^] ?{_INDEX} ?[_^] ?{_INDEX})", {r"\text{C}_5^2": r"\text{C}"})
_AROUND = pattern(
    r"(?:\{ ?\} ?)?[_^] ?\{? ?(?P<n>\d{1,4}) ?\}? ?(?P<kind>[CP]) ?_ ?\{? ?(?P<k>\d{1,4}) ?\}?",
    ("{}_{10}C_3", "^{10}P_{3}", "_5C_2"),
)
_TYPED = pattern(r"(?<![A-Za-z\\])(?P<kind>C) ?\( ?(?P<n>\d{1,4}) ?, ?(?P<k>\d{1,4}) ?\)", ("C(10, 3)",))
_OTHER_LETTERS = pattern(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z]|\\(?!frac|cdot|binom)[A-Za-z]+", {r"2\cdot x": "x"})


def usual(text: str) -> str:
    """A tidy text in the usual notation."""
    return _counted(_UPRIGHT.sub(r"\1", _turned(text)))


def choices(text: str) -> str | None:
    """``C(10,3)`` as a binomial, also a point with a name; None where a tidy text is anything else."""
    found = _TYPED.fullmatch(text)
    return _written(found) if found and int(found["n"]) >= int(found["k"]) else None


def _turned(text: str) -> str:
    r"""Intervals with turned brackets, ``]0,5]`` and ``]1;2[ \cup [3,4[``, with round ones; any other text as it is."""
    found = list(_SQUARE.finditer(text))
    pairs = list(zip(found[::2], found[1::2], strict=False))
    if len(found) % 2 or not any(left[0] == "]" or right[0] == "[" for left, right in pairs):
        return text
    if not all(_ENDS.fullmatch(text, left.end(), right.start()) for left, right in pairs):
        return text
    parts, last = [], 0
    for left, right in pairs:
        parts += [text[last : left.start()], "[" if left[0] == "[" else "("]
        parts += [text[left.end() : right.start()], "]" if right[0] == "]" else ")"]
        last = right.end()
    return "".join(parts) + text[last:]


def _counted(text: str) -> str:
    r"""``C_{10}^3`` and ``{}_5P_2`` as numbers; beside another letter ``C_2^1`` may be the power of a constant."""
    text = _AROUND.sub(_written, text)
    if "_" not in text and "C" not in text:
        return text
    counted = _COUNTED.sub(_written, text if _TYPED.fullmatch(text) else _TYPED.sub(_written, text))
    return text if _OTHER_LETTERS.search(counted) else counted


def _written(found: re.Match[str]) -> str:
    given = {name: int(value.strip("{} ")) for name, value in found.groupdict().items() if value and name != "kind"}
    n, k = given.get("n", given.get("m", 0)), given.get("k", given.get("l", 0))
    if k > n:
        return found[0]
    binomial = rf"\binom{{{n}}}{{{k}}}"
    return binomial if found["kind"] == "C" else rf"({binomial}\cdot {k}!)"
