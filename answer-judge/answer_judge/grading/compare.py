"""Comparison of an answer with the gold answer, kind by kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import sympy

import answer_judge.grading.units as units
import answer_judge.grading.values as v
from answer_judge.grading.brackets import readable
from answer_judge.grading.equality import agree, is_constant, proportional, rational, same_values, tree
from answer_judge.grading.regions import FLIPPED, as_set, is_settled, same_sets
from answer_judge.grading.rules import Grading
from answer_judge.grading.words import is_spelt


def same(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """True if two values are the same answer: by the first of ``_COMPARISONS`` that one of them is for."""
    for applies, compare, _ in _COMPARISONS:
        if applies(gold) or applies(answer):
            return compare(gold, answer, grading)
    assert isinstance(gold, v.Formula) and isinstance(answer, v.Formula)
    return same_values(gold, answer, grading)


def _either(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Some reading of one is some reading of the other; names and options are only compared as such."""
    golds, answers = v.readings(gold), v.readings(answer)
    if _option(golds) and _option(answers):
        return _option(golds) == _option(answers)
    if is_spelt(golds) and not isinstance(answer, v.Expression):
        if isinstance(answer, v.Named):
            return _same_members(gold, answer.members, grading)
        golds = golds[:1]
    return any(readable(same, one, other, grading) for one, other in product(golds, answers))


def _same_texts(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """The same option, or the same words."""
    if not (isinstance(gold, v.Text) and isinstance(answer, v.Text)):
        return False
    return gold.option == answer.option if gold.option else gold.words == answer.words


def _same_quantities(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Values with units: converted where both units are known and measure the same."""
    if not isinstance(gold, v.Quantity):
        assert isinstance(answer, v.Quantity)
        if _is_capital(gold):
            return False  # an option or a name
        if answer.unit == units.PERCENT:
            return _same_percent(gold, answer.value, grading)
        return same(gold, answer.value, grading)
    if not isinstance(answer, v.Quantity):
        percent = gold.unit == units.PERCENT and _scaled(gold, answer, units.PERCENT, grading)
        return percent or same(gold.value, answer, grading)
    if (gold.unit.powers, gold.unit.label) != (answer.unit.powers, answer.unit.label):
        return False
    if gold.unit.factor == answer.unit.factor:
        return same(gold.value, answer.value, grading)
    return _scaled(gold, answer.value, v.Unit(factor=gold.unit.factor / answer.unit.factor), grading)


def _scaled(gold: v.Quantity, answer: v.Value, unit: v.Unit, grading: Grading) -> bool:
    """True if an answer is the gold value times the factor of a unit."""
    if not isinstance(gold.value, v.Formula) or not isinstance(answer, v.Formula):
        return False
    if (exact := rational(gold.value)) is None:
        return False
    written = gold.value if isinstance(gold.value, v.Number) else v.Number(exact)
    step = written.step and written.step * unit.factor
    scaled = replace(grading, absolute=grading.absolute * float(unit.factor))
    return same_values(v.Number(exact * unit.factor, step, written.digits), answer, scaled)


def _same_percent(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """An answer in percent to a gold number without: its hundredth, or itself where the number is above 1."""
    if not isinstance(gold, v.Formula) or not isinstance(answer, v.Formula):
        return False
    exact = rational(answer)
    if exact is not None and same(gold, v.Number(exact / 100), grading):
        return True
    value = rational(gold)
    return value is not None and value > 1 and same(gold, answer, grading)


def _same_named(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """``x = 3`` and 3, ``x = 3`` and ``3 = x``, ``y = 2x`` and ``y - 2x = 0``; never ``x = 3`` and ``y = 3``."""
    if isinstance(gold, v.Named) and isinstance(answer, v.Named):
        if (gold.name, gold.argument) == (answer.name, answer.argument) or _is_graph(gold, answer):
            return _same_members(gold.members[-1], answer.members, grading)
        return _same_equations(gold, answer, grading)
    if isinstance(gold, v.Named):
        if isinstance(answer, v.Equation):
            return _same_equations(gold, answer, grading)
        if is_settled(answer):
            return False
        return same(gold.members[-1], answer, grading)
    assert isinstance(answer, v.Named)
    if _is_capital(gold) and len(answer.name) == 1 and answer.name.isupper():
        return False  # B = A for A
    if isinstance(gold, v.Equation):
        return _same_equations(gold, answer, grading)
    return not isinstance(gold, v.Inequality) and _same_members(gold, answer.members, grading)


def _same_members(gold: v.Value, members: tuple[v.Value, ...], grading: Grading) -> bool:
    """One member of a chain of equalities is right, and no other contradicts it: its decimals may stand beside it.

    Plain numbers agree with each other under any rule: with a tolerance ``100 = 101`` are still two answers.
    """
    right = [same(gold, member, grading) for member in members]
    bare = v.without_unit(gold)
    if not all(right):
        if not any(right) or not isinstance(bare, v.Formula):
            return False
        others = [v.without_unit(member) for member, fits in zip(members, right, strict=True) if not fits]
        if not all(isinstance(other, v.Formula) and _is_decimal(other) and agree(bare, other) for other in others):
            return False
    if grading.exact:
        return True
    given = {member.unit if isinstance(member, v.Quantity) else None for member in members}
    numbers = [number for number in map(v.without_unit, members) if isinstance(number, v.Number)]
    return len(given) > 1 or _one_number(numbers)


def _one_number(values: Sequence[v.Formula]) -> bool:
    """True if formulas side by side are one number, in several forms."""
    return all(agree(one, other) for one, other in combinations(values, 2))


def _is_decimal(value: v.Value) -> bool:
    value = v.without_unit(value)
    return isinstance(value, v.Number) and value.step is not None


def _same_equations(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Two equations that say the same, or a value and a true chain of constants that ends in it."""
    if isinstance(gold, v.Equation) and all(map(_is_number, gold.sides)):
        gold = gold.sides[0]
    if isinstance(answer, v.Equation) and all(map(_is_number, answer.sides)):
        return _is_number(gold) and _same_members(gold, answer.sides, grading)
    if _is_number(gold) and _is_number(answer):
        return same(gold, answer, grading)
    if isinstance(answer, v.Equation) and _is_number(gold) and _says_what_was_asked(answer.sides[0]):
        return _same_members(gold, answer.sides[1:], grading)
    left, right = _both_sides(gold), _both_sides(answer)
    return left is not None and right is not None and proportional(left, right)


def _same_regions(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Sets of real numbers, however they are written; other inequalities side by side."""
    left, right = as_set(gold), as_set(answer)
    if left is not None and right is not None:
        return same_sets(left, right)
    if not (isinstance(gold, v.Inequality) and isinstance(answer, v.Inequality)):
        return False
    forwards = gold.signs == answer.signs and _in_order(gold.sides, answer.sides, grading)
    flipped = tuple(FLIPPED[sign] for sign in reversed(answer.signs))
    return forwards or (gold.signs == flipped and _in_order(gold.sides, answer.sides[::-1], grading))


def _same_matrices(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Matrices cell by cell; a column may be written as a tuple."""
    if isinstance(gold, v.Matrix) and isinstance(answer, v.Matrix):
        shapes = [(len(matrix.rows), len(matrix.rows[0])) for matrix in (gold, answer)]
        cells = [[cell for row in matrix.rows for cell in row] for matrix in (gold, answer)]
        pairs = zip(cells[0], cells[1], strict=False)
        return shapes[0] == shapes[1] and all(same(one, other, grading) for one, other in pairs)
    column, other = _as_column(gold), _as_column(answer)
    return column is not None and other is not None and _in_order(column, other, grading)


def _same_items(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Lists and sets in any order, tuples and intervals in theirs."""
    if (
        not isinstance(gold, v.Items) and isinstance(answer, v.Items) and not answer.brackets
    ):  # one value in several forms
        formulas = [item for item in map(v.without_unit, answer.items) if isinstance(item, v.Formula)]
        one = grading.exact or (len(formulas) == len(answer.items) and _one_number(formulas))
        return one and all(same(gold, item, grading) for item in answer.items)
    if not isinstance(gold, v.Items) or not isinstance(answer, v.Items):
        alone = gold if isinstance(gold, v.Items) else answer
        if not (isinstance(alone, v.Items) and alone.brackets == "{}" and len(alone.items) == 1):
            return False
        return same(alone.items[0], answer, grading) if alone is gold else same(gold, alone.items[0], grading)
    if gold.brackets == answer.brackets == "{}":
        found = all(any(_same_ends(item, other, grading) for other in answer.items) for item in gold.items)
        return found and all(any(_same_ends(item, other, grading) for item in gold.items) for other in answer.items)
    if len(gold.items) != len(answer.items):
        return False
    kinds, fits = {gold.brackets, answer.brackets}, partial(_same_ends, grading=grading)
    if kinds <= {"", "{}"}:
        ordered = _has_an_order(gold.items, answer.items)
        return _in_order(gold.items, answer.items, grading) if ordered else v.matched(gold.items, answer.items, fits)
    if kinds == {"", "()"}:
        if any(map(_is_infinite, (*gold.items, *answer.items))):
            return False  # an interval is no list of its ends
        names = [item.name for item in (*gold.items, *answer.items) if isinstance(item, v.Named)]
        if names != sorted(names):
            return False
        matched = grading.several is True and v.matched(gold.items, answer.items, fits)
        return matched or _in_order(gold.items, answer.items, grading)
    if kinds == {"()", "[]"} and len(gold.items) > 2:
        return _in_order(gold.items, answer.items, grading)  # a vector: no interval has three ends
    return len(kinds) == 1 and _in_order(gold.items, answer.items, grading)


def _in_order(gold: tuple[v.Value, ...], answer: tuple[v.Value, ...], grading: Grading) -> bool:
    return len(gold) == len(answer) and all(
        _same_ends(one, other, grading) for one, other in zip(gold, answer, strict=True)
    )


def _same_ends(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Items, where both may be infinite."""
    infinite = _is_infinite(gold) or _is_infinite(answer)
    if infinite and isinstance(gold, v.Expression) and isinstance(answer, v.Expression):
        return bool(gold.tree.doit() == answer.tree.doit())
    return not infinite and same(gold, answer, grading)


def _is(kind: type) -> Callable[[v.Value], bool]:
    return lambda value: isinstance(value, kind)


_Comparison = Callable[[v.Value, v.Value, Grading], bool]
_COMPARISONS: tuple[tuple[Callable[[v.Value], bool], _Comparison, tuple[str, str]], ...] = (
    (_is(v.Either), _either, ("D", r"\text{(D)}")),  # first: "(D) 14" is the option too
    (_is(v.Text), _same_texts, ("the East", "east")),
    (_is(v.Quantity), _same_quantities, ("9 ft", "3 yards")),
    # A name or an equation before what it says.
    (_is(v.Named), _same_named, ("x=(1,2)", "(1,2)")),
    (_is(v.Equation), _same_equations, ("x+y=1", "2x+2y=2")),
    # A set of numbers and a column before a list: an interval is written like one, a column may be.
    (is_settled, _same_regions, (r"[6,\infty)", r"k \ge 6")),
    (_is(v.Matrix), _same_matrices, (r"\begin{pmatrix}1\\2\\3\end{pmatrix}", "(1,2,3)")),
    (_is(v.Items), _same_items, ("1, 2", "2, 1")),
    (_is(v.Based), lambda gold, answer, grading: gold == answer, ("63_8", r"63_{\text{eight}}")),
)
"""What values of each kind are compared by, from the outside in, each with two answers that it finds to be the same."""


_ANGLE_FUNCTIONS = (sympy.sin, sympy.cos, sympy.tan, sympy.cot, sympy.sec, sympy.csc)


def _is_graph(one: v.Named, other: v.Named) -> bool:
    """True if one is ``f(x) = ...`` and the other ``y = ...``."""
    plain, function = (one, other) if other.argument else (other, one)
    return plain.name == "y" and not plain.argument and function.argument == "x"


def _both_sides(value: v.Value) -> tuple[Any, Any] | None:
    if isinstance(value, v.Named) and value.plain is not None and len(value.members) == 1:
        sides: tuple[v.Value, ...] = (value.plain, value.members[0])
    elif isinstance(value, v.Equation) and len(value.sides) == 2:
        sides = value.sides
    else:
        return None
    left, right = map(v.as_formula, sides)
    return None if left is None or right is None else (tree(left), tree(right))


def _is_number(value: v.Value) -> bool:
    value = v.without_unit(value)
    return isinstance(value, v.Formula) and is_constant(value)


def _is_capital(value: v.Value) -> bool:
    """True if a value is one capital letter, as a formula."""
    name = value.tree.name if isinstance(value, v.Expression) and value.tree.is_Symbol else ""
    return len(name) == 1 and name.isupper()


def _has_an_order(gold: tuple[v.Value, ...], answer: tuple[v.Value, ...]) -> bool:
    """True if a list has an order although nothing says so: verdicts, counted things, names that are left out."""
    names = {item.name for item in gold if isinstance(item, v.Named)}
    counted = {item.unit.label for item in gold if isinstance(item, v.Quantity) and item.unit.label}
    indexed = any("_" in name or name[-1:].isdigit() for name in names)
    unnamed = len(names) == len(gold) > 1 and not indexed and not any(isinstance(item, v.Named) for item in answer)
    return unnamed or len(counted) > 1 or (len(gold) > 1 and all(map(_is_verdict, gold)))


_VERDICTS = {"yes", "no", "true", "false", "t", "f", "T", "F"}


def _is_verdict(value: v.Value) -> bool:
    """True if an item says yes or no: in words, or as T or F."""
    found = v.readings(value)
    words = {part.words for part in found if isinstance(part, v.Text)}
    letters = {part.tree.name for part in found if isinstance(part, v.Expression) and part.tree.is_Symbol}
    return bool(_VERDICTS & (words | letters))


def _says_what_was_asked(side: v.Value) -> bool:
    r"""True if the left side of an equation only says that its right side is the answer, as in ``m + n = 33``.

    It has two letters or more (``x + 1 = 5`` is about x, and says that it is 4), or is a function of one angle.
    """
    found = v.as_formula(side)
    if not isinstance(found, v.Expression):
        return False
    formula = found.tree
    angle = isinstance(formula, _ANGLE_FUNCTIONS) and formula.args[0].is_Symbol
    value_before = bool(found.words) and formula.as_coeff_Mul()[0] != 1  # 9/4 at x = 1/2
    return angle or (len(formula.free_symbols) > 1 and not value_before)


def _as_column(value: v.Value) -> tuple[v.Value, ...] | None:
    """The cells of a matrix with one column, the items of a tuple; None for any other value."""
    if isinstance(value, v.Matrix) and len(value.rows[0]) == 1:
        return tuple(row[0] for row in value.rows)
    return value.items if isinstance(value, v.Items) and value.brackets in ("()", "[]") else None


def _is_infinite(value: v.Value) -> bool:
    return isinstance(value, v.Expression) and value.tree.is_infinite is True


def _option(readings: tuple[v.Value, ...]) -> str:
    """The letter of the option that an answer names, or an empty text."""
    return readings[0].option if isinstance(readings[0], v.Text) else ""
