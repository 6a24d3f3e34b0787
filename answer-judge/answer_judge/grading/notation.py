"""Other notations: of other countries, digits in a base such as ``63_8``, and sums of unit vectors."""

import re
from fractions import Fraction
from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.brackets import brackets, readable
from answer_judge.grading.numbers import read_number
from answer_judge.grading.patterns import pattern
from answer_judge.grading.words import NUMBER_WORDS

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
    inside = [(left.end(), right.start()) for left, right in pairs]
    if not all(_ENDS.fullmatch(text, *ends) for ends in inside):
        return text
    if any(readable(list, brackets(text[slice(*ends)])) is None for ends in inside):
        return text  # such as (1,2] \cup (3,4], with a pair from one interval to the next
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


_UNIT = pattern(
    r"\\(?:mathbf|boldsymbol|bm|hat|widehat|vec|overrightarrow) ?(?P<one>\{ ?)?"
    r"(?:\\(?:mathbf|boldsymbol|bm|hat|vec) ?(?P<two>\{ ?)?)?"
    r"\\?(?P<letter>[ijk])(?:math)?(?![A-Za-z])(?(two) ?\})(?(one) ?\})",
    {r"2\mathbf{i}": r"\mathbf{i}", r"\hat{\imath}": r"\hat{\imath}", r"\hat{\mathbf{k}}}": r"\hat{\mathbf{k}}"},
)
_BOLD = pattern(
    r"\\(?:underline|bf) ?\{ ?([ijk]) ?\}|\{ ?\\bf ([ijk]) ?\}",
    {r"2\underline{i}": r"\underline{i}", r"\bf{j}": r"\bf{j}", r"{\bf k}": r"{\bf k}"},
)
_AXES = tuple(sympy.Symbol(f"hatOF{letter}") for letter in "ijk")


def with_hats(text: str) -> str | None:
    r"""A text whose unit vectors are all written ``\hat{i}``; None where it has none."""
    written = _UNIT.sub(r" \\hat{\g<letter>} ", _BOLD.sub(r"\\mathbf{\1\2}", text))
    return None if written == text else written


def as_tuples(value: v.Value) -> list[v.Value]:
    """The tuples a sum of unit vectors can stand for: in space, and in the plane where it has no third component."""
    if isinstance(value, v.Named) and len(value.members) == 1:
        return [v.Named(value.name, value.argument, (found,)) for found in as_tuples(value.members[0])]
    if not isinstance(value, v.Expression):
        return []
    formula = value.tree.expand()
    parts = [formula.coeff(axis) for axis in _AXES]
    rest = formula - sum(part * axis for part, axis in zip(parts, _AXES, strict=True))
    if rest.expand() != 0 or any(part.has(*_AXES) for part in parts):
        return []
    items = tuple(map(_component, parts))
    return [v.Items("()", items), *([v.Items("()", items[:2])] if parts[2] == 0 else [])]


def _component(part: Any) -> v.Value:
    if part.is_Rational:
        return v.Number(Fraction(int(part.p), int(part.q)))
    return v.Expression(f"component {part}", part)
