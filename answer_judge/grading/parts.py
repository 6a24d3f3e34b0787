"""What an answer has inside: the pieces that comparing it with another needs, without comparing."""

from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.equality import is_constant, tree
from answer_judge.grading.patterns import pattern

_CAPITALS_OF_OPTIONS = frozenset("abcdefghij")
_SHORT_WORD = pattern(r"[^aeiou][aeiou][^aeiou]|no", ("cat", "no"))
_ANGLE_FUNCTIONS = (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec, sympy.csc)


def is_graph(one: v.Named, other: v.Named) -> bool:
    """Whether one is ``f(x) = ...`` and the other ``y = ...``."""
    plain, function = (one, other) if other.argument else (other, one)
    return plain.name == "y" and not plain.argument and function.argument == "x"


def both_sides(value: v.Value) -> tuple[Any, Any] | None:
    if isinstance(value, v.Named) and value.plain is not None and len(value.members) == 1:
        sides: tuple[v.Value, ...] = (value.plain, value.members[0])
    elif isinstance(value, v.Equation) and len(value.sides) == 2:
        sides = value.sides
    else:
        return None
    left, right = map(v.as_formula, sides)
    return None if left is None or right is None else (tree(left), tree(right))


def is_number(value: v.Value) -> bool:
    value = v.without_unit(value)
    return isinstance(value, v.Formula) and is_constant(value)


def is_capital(value: v.Value) -> bool:
    """Whether a value is one capital letter, as a formula."""
    name = value.tree.name if isinstance(value, v.Expression) and value.tree.is_Symbol else ""
    return len(name) == 1 and name.isupper()


def has_an_order(gold: tuple[v.Value, ...], answer: tuple[v.Value, ...]) -> bool:
    """Whether a list has an order although nothing says so: verdicts, counted things, names that are left out."""
    names = {item.name for item in gold if isinstance(item, v.Named)}
    counted = {item.unit.label for item in gold if isinstance(item, v.Quantity) and item.unit.label}
    indexed = any("_" in name or name[-1:].isdigit() for name in names)
    unnamed = len(names) == len(gold) > 1 and not indexed and not any(isinstance(item, v.Named) for item in answer)
    return unnamed or len(counted) > 1 or (len(gold) > 1 and all(map(_is_verdict, gold)))


_VERDICTS = {"yes", "no", "true", "false", "t", "f", "T", "F"}


def _is_verdict(value: v.Value) -> bool:
    """Whether an item says yes or no: in words, or as T or F."""
    found = v.readings(value)
    words = {part.words for part in found if isinstance(part, v.Text)}
    return bool(_VERDICTS & {*words, *(part.tree.name for part in found if is_capital(part))})


def says_what_was_asked(side: v.Value) -> bool:
    r"""Whether the left side of an equation only says that its right side is the answer, as in ``m + n = 33``.

    It has two letters or more (``x + 1 = 5`` is about x, and says that it is 4), or is a function of one angle.
    """
    found = v.as_formula(side)
    if not isinstance(found, v.Expression):
        return False
    formula = found.tree
    angle = isinstance(formula, _ANGLE_FUNCTIONS) and formula.args[0].is_Symbol
    value_before = bool(found.words) and formula.as_coeff_Mul()[0] != 1  # 9/4 at x = 1/2
    return angle or (len(formula.free_symbols) > 1 and not value_before)


def as_column(value: v.Value) -> tuple[v.Value, ...] | None:
    """The cells of a matrix with one column, the items of a tuple; None for any other value."""
    if isinstance(value, v.Matrix) and not value.bars and len(value.rows[0]) == 1:
        return tuple(row[0] for row in value.rows)
    return value.items if isinstance(value, v.Items) and value.brackets in ("()", "[]") else None


def is_infinite(value: v.Value) -> bool:
    return isinstance(value, v.Expression) and value.tree.is_infinite is True


def is_spelt(readings: tuple[v.Value, ...]) -> bool:
    """Whether letters are a name, whose order counts, and no product: ``MAKE``, ``cat``; ``BDE`` may be options."""
    if len(readings) != 2 or not isinstance(readings[0], v.Text) or not isinstance(readings[1], v.Expression):
        return False
    words = readings[0].words
    if len(words) < 3 or not all(letter.name.isupper() for letter in readings[1].tree.free_symbols):
        return _SHORT_WORD.fullmatch(words) is not None
    return not (list(words) == sorted(set(words)) and _CAPITALS_OF_OPTIONS.issuperset(words))


def option(readings: tuple[v.Value, ...]) -> str:
    """The letter of the option that an answer names, or an empty text."""
    return readings[0].option if isinstance(readings[0], v.Text) else ""
