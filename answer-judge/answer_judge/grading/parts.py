"""What an answer has inside: the pieces that comparing it with another needs, without comparing."""

from dataclasses import replace
from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.equality import is_constant, proportional, tree
from answer_judge.grading.patterns import pattern

_CAPITALS_OF_OPTIONS = frozenset("abcdefghij")
_SHORT_WORD = pattern(r"[^aeiou][aeiou][^aeiou]|no", ("cat", "no"))
_UPWARDS = (">", r"\ge")
_ANGLE_FUNCTIONS = (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec, sympy.csc)


def is_graph(one: v.Named, other: v.Named) -> bool:
    """Whether one is ``f(x) = ...`` and the other ``y = ...``."""
    plain, function = (one, other) if other.argument else (other, one)
    return plain.name == "y" and not plain.argument and function.argument == "x"


def with_argument(named: v.Named, argument: str) -> v.Named:
    """``f(t) = t^2`` as ``f(x) = x^2``."""
    if not (named.argument.isalpha() and argument.isalpha() and len(argument) == len(named.argument) == 1):
        return named
    letters = {sympy.Symbol(named.argument): sympy.Symbol(argument)}
    members = tuple(
        replace(member, latex=f"{member.latex} ", tree=member.tree.xreplace(letters))
        if isinstance(member, v.Expression)
        else member
        for member in named.members
    )
    return v.Named(named.name, argument, members)


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


def says_what_was_asked(side: v.Value, gold: v.Value) -> bool:
    r"""Whether the left side of an equation only says what its right side is, as in ``m + n = 33``.

    For a number: a formula with two letters or more (``x + 1 = 5`` is about x, and says that it is 4), or a function
    of one angle. For a matrix or a set: letters, inverses and set signs. For a formula: a derivative.
    """
    if isinstance(gold, (v.Matrix, v.Items)):
        parts = side.parts if isinstance(side, v.Region) else (side,)
        formulas = [v.as_formula(part) for part in parts]
        return all(isinstance(found, v.Expression) and _has_no_coefficient(found.tree) for found in formulas)
    found = v.as_formula(side)
    if not isinstance(found, v.Expression):
        return False
    formula = found.tree
    if is_number(gold):
        angle = isinstance(formula, _ANGLE_FUNCTIONS) and formula.args[0].is_Symbol
        value_before = bool(found.words) and formula.as_coeff_Mul()[0] != 1  # 9/4 at x = 1/2
        return angle or (len(formula.free_symbols) > 1 and not value_before)
    return isinstance(gold, v.Expression) and formula.is_Symbol and formula.name.startswith("DER")


def says_its_value(gold: v.Equation) -> bool:
    r"""Whether a gold equation is a name for a number: ``\cos A = 1/2``, ``\sqrt{ab} = 2``, ``AB/BC = 1/2``.

    A sum, a product or a quotient of unknowns is an equation between them: ``xy = 1``.
    """
    side = v.as_formula(gold.sides[0])
    if len(gold.sides) != 2 or not is_number(gold.sides[1]) or not isinstance(side, v.Expression):
        return False
    formula = side.tree
    angle = formula.func in _ANGLE_FUNCTIONS and formula.args[0].is_Symbol
    if len(letters := formula.free_symbols) < 2:
        return angle
    if formula.is_Mul and not formula.has(sympy.Add) and formula.as_numer_denom()[1] != 1:
        return all(letter.name.isupper() for letter in letters)
    return formula.is_Pow and formula.exp == sympy.Rational(1, 2) and formula.base.is_Mul


def _has_no_coefficient(formula: Any) -> bool:
    """Whether a formula has letters, and numbers only as exponents."""
    if formula.is_Pow:
        return _has_no_coefficient(formula.base)
    return formula.is_Symbol or (bool(formula.args) and all(map(_has_no_coefficient, formula.args)))


_JUDGED = {"yes", "no", "true", "false", "t", "f"}


def _is_verdict(value: v.Value) -> bool:
    """Whether an item says yes or no: in words, or as T or F."""
    found = v.readings(value)
    words = {part.words for part in found if isinstance(part, v.Text)}
    letters = {part.tree.name for part in found if isinstance(part, v.Expression) and part.tree.is_Symbol}
    return bool(words & _JUDGED or letters & {"T", "F"})


def in_their_order(gold: tuple[v.Value, ...], answer: tuple[v.Value, ...]) -> bool:
    """Whether a list has an order although nothing says so: verdicts, or values whose names the answer leaves out."""
    names = {item.name for item in gold if isinstance(item, v.Named)}
    named = len(names) == len(gold) > 1 and not any("_" in name or name[-1:].isdigit() for name in names)
    return (len(gold) > 1 and all(map(_is_verdict, gold))) or (
        named and not any(isinstance(item, v.Named) for item in answer)
    )


def labels(items: tuple[v.Value, ...]) -> set[str]:
    """What is counted in a list: the labels of its quantities."""
    return {item.unit.label for item in items if isinstance(item, v.Quantity) and item.unit.label}


def without_names(members: tuple[v.Value, ...]) -> tuple[v.Value, ...]:
    """The members of ``x = y = 5`` that are no bare letters, unless all are."""
    found = tuple(m for m in members if not (isinstance(m, v.Expression) and m.tree.is_Symbol))
    return found or members


def same_inequalities(sign: str, gold: tuple[Any, Any], other_sign: str, answer: tuple[Any, Any]) -> bool:
    if sign == r"\ne" or other_sign == r"\ne":
        return sign == other_sign and proportional(gold, answer)
    gold, answer = gold[::-1] if sign in _UPWARDS else gold, answer[::-1] if other_sign in _UPWARDS else answer
    return (sign in "<>") == (other_sign in "<>") and proportional(gold, answer, positive=True)


def as_rows(value: v.Value) -> v.Value:
    """``[[1,2],[3,4]]`` as a matrix, any other value as it is."""
    if not isinstance(value, v.Items) or value.brackets != "[]":
        return value
    rows = [item.items for item in value.items if isinstance(item, v.Items) and item.brackets == "[]"]
    return v.Matrix(tuple(rows)) if len(rows) == len(value.items) and len(set(map(len, rows))) == 1 else value


def as_column(value: v.Value) -> tuple[v.Value, ...] | None:
    """The cells of a matrix with one column, the items of a tuple; None for any other value."""
    if isinstance(value, v.Matrix) and not value.bars and len(value.rows[0]) == 1:
        return tuple(row[0] for row in value.rows)
    return value.items if isinstance(value, v.Items) and value.brackets in ("()", "[]") else None


def is_infinite(value: v.Value) -> bool:
    return isinstance(value, v.Expression) and value.tree.is_infinite is True


def by_letter(items: tuple[v.Value, ...]) -> tuple[v.Value, ...]:
    """``y = 2, x = 1`` in the order of the letters, where every item has one."""
    named = [item for item in items if isinstance(item, v.Named) and len(item.name) == 1]
    if len(named) != len(items) or len({item.name for item in named}) != len(items):
        return items
    return tuple(item.members[-1] for item in sorted(named, key=lambda item: item.name))


def in_radians(value: v.Value) -> v.Value:
    """A number of degrees as radians."""
    return v.Expression("", tree(value) * sympy.pi / 180) if isinstance(value, v.Formula) else value


def in_angles(value: v.Value) -> bool:
    """Whether a value is seen to be in radians: it has pi in it, or an inverse function."""
    return isinstance(value, v.Expression) and value.tree.has(sympy.pi, sympy.asin, sympy.acos, sympy.atan)


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


def behind_option(readings: tuple[v.Value, ...]) -> v.Value | None:
    """What stands behind the letter of an option, where that is more than words."""
    first, *others = readings
    labels = isinstance(first, v.Text) and first.words == f"({first.option})".lower()
    return others[0] if labels and others and not isinstance(others[0], v.Text) else None
