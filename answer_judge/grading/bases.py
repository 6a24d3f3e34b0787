"""Digits in a base: ``63_8``, ``63_{\\text{eight}}``."""

import answer_judge.grading.values as v
from answer_judge.grading.numbers import read_number
from answer_judge.grading.patterns import pattern
from answer_judge.grading.words import NUMBER_WORDS

_BASED = pattern(
    r"\(?(?:\\text\{)?(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)\}?\)?\s*_(?:\s*\{)?(?:\s*\\text\{)?\s*([0-9]{1,2}|[a-z]+)\s*\}?\}?",
    ("63_8", r"(1A)_{\text{sixteen}}", r"\text{1A}_{16}"),
)
_ZEROS = pattern(r"^(-?)0+(?=[0-9A-Z])", {"-0012": "-00"})
_BASES = {word: base for word, base in NUMBER_WORDS.items() if 2 <= base <= 10 or base in (12, 16)}


def read_based(text: str) -> v.Value | None:
    """The digits and the base of a tidy text, a number where the base is ten; None where it has no base."""
    found = _BASED.fullmatch(text)
    if not found:
        return None
    base = _BASES.get(found[2].lower()) or (int(found[2]) if found[2].isdigit() else 0)
    digits = _ZEROS.sub(r"\1", found[1])
    if base == 10:
        return read_number(digits)
    fits = 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits.replace("-", "").replace(".", ""))
    return v.Based(digits, base) if fits else None
