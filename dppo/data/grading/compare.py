"""Whether an answer is the gold answer: kind by kind."""

from dataclasses import replace

from dppo.data.grading.closeness import same_values
from dppo.data.grading.equality import (
    proportional,
    rational,
    tree,
)
from dppo.data.grading.numbers import endless
from dppo.data.grading.parts import (
    as_rows,
    both_sides,
    by_letter,
    in_angles,
    in_radians,
    is_graph,
    is_infinite,
    is_number,
    same_inequalities,
    says_what_was_asked,
    with_argument,
    without_names,
)
from dppo.data.grading.regions import FLIPPED, as_set, is_settled, same_sets
from dppo.data.grading.text import Unreadable
from dppo.data.grading.units import DEGREE, PERCENT, RADIAN, compatible_label, compatible_labels, same_dimension
from dppo.data.grading.values import (
    Based,
    Either,
    Equation,
    Expression,
    Inequality,
    Items,
    Matrix,
    Named,
    Number,
    Quantity,
    Text,
    Unit,
    Value,
)
from dppo.data.rules import Grading

_NEAR_MEMBERS = 0.01
"""In ``x = \\sqrt{2} = 1.41`` the later members may differ from the right one by this share."""


def same(gold: Value, answer: Value, grading: Grading) -> bool:
    """Whether two values are the same answer.

    Raises:
        Unreadable: formulas that have no value anywhere.
    """
    if isinstance(gold, Either) or isinstance(answer, Either):
        return _either(gold, answer, grading)
    if isinstance(gold, Text) or isinstance(answer, Text):
        return isinstance(gold, Text) and isinstance(answer, Text) and _same_text(gold, answer)
    if isinstance(gold, Quantity) or isinstance(answer, Quantity):
        return _same_quantities(gold, answer, grading)
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _same_named(gold, answer, grading)
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _same_equations(gold, answer, grading)
    if is_settled(gold) or is_settled(answer):
        return _same_regions(gold, answer, grading)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _same_matrices(gold, answer, grading)
    if isinstance(gold, Items) or isinstance(answer, Items):
        return _same_items(gold, answer, grading)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return gold == answer
    assert isinstance(gold, (Number, Expression)) and isinstance(answer, (Number, Expression))
    return same_values(gold, answer, grading)


def _either(gold: Value, answer: Value, grading: Grading) -> bool:
    """Some reading of one is some reading of the other; two clock times are only compared as such."""
    golds = gold.values if isinstance(gold, Either) else (gold,)
    answers = answer.values if isinstance(answer, Either) else (answer,)
    clocks = [[v for v in values if isinstance(v, Text) and ":" in v.words] for values in (golds, answers)]
    if all(clocks):
        golds, answers = (tuple(values) for values in clocks)
    for one in golds:
        for other in answers:
            try:
                if same(one, other, grading):
                    return True
            except Unreadable:
                continue
    return False


def _same_text(gold: Text, answer: Text) -> bool:
    """The same option, or the same words."""
    if gold.option:
        return gold.option == answer.option
    if gold.words == answer.words:
        return True
    clock, other = sorted((gold.words, answer.words), key=len)
    return ":" in clock and other.startswith(f"{clock} ")  # 12:30 and 12:30 pm


def _same_quantities(gold: Value, answer: Value, grading: Grading) -> bool:
    """Values with units: converted where both units are known and measure the same."""
    if not isinstance(gold, Quantity):
        assert isinstance(answer, Quantity)
        if answer.unit == PERCENT:
            return _same_percent(gold, answer.value, grading)
        return same(gold, answer.value, grading) or _same_angles(gold, answer, grading)
    if not isinstance(answer, Quantity):
        percent = gold.unit == PERCENT and _scaled(gold, answer, PERCENT, grading)
        return percent or same(gold.value, answer, grading) or _same_angles(gold, answer, grading)
    if gold.unit.label and answer.unit.label:
        return compatible_labels(gold.unit.label, answer.unit.label) and same(gold.value, answer.value, grading)
    if gold.unit.label or answer.unit.label:
        known, label = (answer.unit, gold.unit.label) if gold.unit.label else (gold.unit, answer.unit.label)
        return compatible_label(known, label) and same(gold.value, answer.value, grading)
    if not same_dimension(gold.unit, answer.unit):
        return _same_angles(gold, answer, grading)
    if gold.unit.factor == answer.unit.factor:
        return same(gold.value, answer.value, grading)
    return _scaled(gold, answer.value, Unit(factor=gold.unit.factor / answer.unit.factor), grading)


def _same_angles(gold: Value, answer: Value, grading: Grading) -> bool:
    """Whether one is in degrees, the other in radians, said so or seen, and both are the same angle."""
    units = [value.unit if isinstance(value, Quantity) else None for value in (gold, answer)]
    values = [value.value if isinstance(value, Quantity) else value for value in (gold, answer)]
    if units.count(DEGREE) != 1 or any(unit not in (DEGREE, RADIAN, None) for unit in units):
        return False
    angles: list[Number | Expression] = []
    for unit, value in zip(units, values, strict=True):
        if not isinstance(value, (Number, Expression)) or (unit is None and not in_angles(value)):
            return False
        angles.append(in_radians(value) if unit == DEGREE else value)
    return same_values(angles[0], angles[1], grading)


def _scaled(gold: Quantity, answer: Value, unit: Unit, grading: Grading) -> bool:
    """Whether an answer is the gold value times the factor of a unit."""
    if not isinstance(gold.value, (Number, Expression)) or not isinstance(answer, (Number, Expression)):
        return False
    exact = rational(gold.value)
    if exact is None:
        return False
    step = gold.value.step * unit.factor if isinstance(gold.value, Number) and gold.value.step else None
    digits = gold.value.digits if isinstance(gold.value, Number) else 0
    scaled = replace(grading, absolute=grading.absolute * float(unit.factor))
    return same_values(Number(exact * unit.factor, step, digits), answer, scaled)


def _same_percent(gold: Value, answer: Value, grading: Grading) -> bool:
    """An answer in percent to a gold number without: its hundredth, or itself where the number is above 1."""
    if not isinstance(gold, (Number, Expression)) or not isinstance(answer, (Number, Expression)):
        return False
    exact = rational(answer)
    if exact is not None and same(gold, Number(exact / 100), grading):
        return True
    value = rational(gold)
    return value is not None and value > 1 and same(gold, answer, grading)


def _same_named(gold: Value, answer: Value, grading: Grading) -> bool:
    """``x = 3`` and 3, ``x = 3`` and ``3 = x``, ``y = 2x`` and ``y - 2x = 0``; never ``x = 3`` and ``y = 3``."""
    if isinstance(gold, Named) and isinstance(answer, Named):
        renamed = answer
        if gold.argument != answer.argument and gold.name == answer.name:
            renamed = with_argument(answer, gold.argument)
        if (gold.name == renamed.name and gold.argument == renamed.argument) or is_graph(gold, answer):
            return _same_members(gold.members[-1], renamed.members, grading)
        return _same_equations(gold, answer, grading)
    if isinstance(gold, Named):
        if isinstance(answer, Equation):
            return _same_equations(gold, answer, grading)
        if is_settled(answer):
            return False
        return same(gold.members[-1], answer, grading)
    assert isinstance(answer, Named)
    if isinstance(gold, Equation):
        return _same_equations(gold, answer, grading)
    if is_number(gold):
        return _same_members(gold, without_names(answer.members), grading)
    if is_settled(gold) and not isinstance(gold, Items):
        return _same_members(gold, answer.members, grading) if not isinstance(gold, Inequality) else False
    return _same_members(gold, answer.members, grading)


def _same_members(gold: Value, members: tuple[Value, ...], grading: Grading) -> bool:
    """One member of a chain of equalities is right, and no other contradicts it."""
    right = [same(gold, member, grading) for member in members]
    if all(right) or not any(right):
        return all(right)
    bare = gold.value if isinstance(gold, Quantity) else gold
    if not isinstance(bare, (Number, Expression)):
        return False
    exact = rational(bare)
    if exact is not None and not endless(exact):  # it has nothing to be rounded: another number is a second answer
        return False
    loose = Grading(relative=_NEAR_MEMBERS)
    near = (
        fits or (_is_decimal(member) and same(gold, member, loose)) for fits, member in zip(right, members, strict=True)
    )
    return all(near)


def _is_decimal(value: Value) -> bool:
    value = value.value if isinstance(value, Quantity) else value
    return isinstance(value, Number) and value.step is not None


def _same_equations(gold: Value, answer: Value, grading: Grading) -> bool:
    """Two equations that say the same, or a value and a true chain of constants that ends in it."""
    if isinstance(gold, Equation) and all(map(is_number, gold.sides)):
        gold = gold.sides[0]
    if isinstance(answer, Equation) and all(map(is_number, answer.sides)):
        return is_number(gold) and _same_members(gold, answer.sides, grading)
    if is_number(gold) and is_number(answer):
        return same(gold, answer, grading)
    if isinstance(answer, Equation) and says_what_was_asked(answer.sides[0], gold):
        return _same_members(gold, answer.sides[1:], grading)
    left, right = both_sides(gold), both_sides(answer)
    return left is not None and right is not None and proportional(left, right)


def _same_regions(gold: Value, answer: Value, grading: Grading) -> bool:
    """Sets of real numbers, however they are written; inequalities in several letters one by one."""
    if isinstance(gold, Inequality) and isinstance(answer, Inequality) and len(gold.signs) == len(answer.signs) == 1:
        sides = [side for part in (gold, answer) for side in part.sides]
        if all(isinstance(side, (Number, Expression)) for side in sides):
            left, right, *others = (tree(side) for side in sides if isinstance(side, (Number, Expression)))
            if len((left - right).free_symbols) > 1:
                return same_inequalities(gold.signs[0], (left, right), answer.signs[0], (others[0], others[1]))
    left, right = as_set(gold), as_set(answer)
    if left is not None and right is not None:
        return same_sets(left, right)
    if not isinstance(gold, Inequality) or not isinstance(answer, Inequality):
        return False
    forwards = gold.signs == answer.signs and _in_order(gold.sides, answer.sides, grading)
    flipped = tuple(FLIPPED[sign] for sign in reversed(answer.signs))
    return forwards or (gold.signs == flipped and _in_order(gold.sides, answer.sides[::-1], grading))


def _same_matrices(gold: Value, answer: Value, grading: Grading) -> bool:
    """Matrices cell by cell; a column may be written as a tuple."""
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        shapes = [(len(matrix.rows), len(matrix.rows[0]), matrix.bars) for matrix in (gold, answer)]
        return shapes[0] == shapes[1] and all(
            same(one, other, grading)
            for left, right in zip(gold.rows, answer.rows, strict=True)
            for one, other in zip(left, right, strict=True)
        )
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    rows = as_rows(other)
    if rows is not None and isinstance(matrix, Matrix):
        return _same_matrices(gold, rows, grading) if matrix is gold else _same_matrices(rows, answer, grading)
    if not (isinstance(matrix, Matrix) and isinstance(other, Items)) or matrix.bars or len(matrix.rows[0]) != 1:
        return False
    cells = tuple(row[0] for row in matrix.rows)
    column, listed = (cells, other.items) if matrix is gold else (other.items, cells)
    return other.brackets in ("()", "[]") and _in_order(column, listed, grading)


def _same_items(gold: Value, answer: Value, grading: Grading) -> bool:
    """Lists and sets in any order, tuples and intervals in theirs."""
    if not isinstance(gold, Items) or not isinstance(answer, Items):
        if isinstance(answer, Items) and not answer.brackets:
            return all(same(gold, item, grading) for item in answer.items)  # one value in several forms
        alone, other = (gold, answer) if isinstance(gold, Items) else (answer, gold)
        if not (isinstance(alone, Items) and alone.brackets == "{}" and len(alone.items) == 1):
            return False
        item = alone.items[0]
        return same(item, other, grading) if alone is gold else same(other, item, grading)
    if gold.brackets == answer.brackets == "{}":
        return all(
            any(_same_ends(*pair, grading) for pair in pairs)
            for pairs in (
                *([(item, other) for other in answer.items] for item in gold.items),
                *([(item, other) for item in gold.items] for other in answer.items),
            )
        )
    if len(gold.items) != len(answer.items):
        return False
    if all(not items.brackets or items.brackets == "{}" for items in (gold, answer)):
        return _in_any_order(gold.items, answer.items, grading)
    kinds = {gold.brackets, answer.brackets}
    if kinds == {"", "()"}:
        listed = by_letter(answer.items) if not answer.brackets else answer.items
        if _endless(gold) or _endless(answer):
            return False  # an interval is no list of its ends
        any_order = grading.several is True and _in_any_order(gold.items, listed, grading)
        return any_order or _in_order(gold.items, listed, grading)
    if kinds == {"()", "[]"} and len(gold.items) > 2:
        return _in_order(gold.items, answer.items, grading)  # a vector: no interval has three ends
    return len(kinds) == 1 and _in_order(gold.items, answer.items, grading)


def _in_order(gold: tuple[Value, ...], answer: tuple[Value, ...], grading: Grading) -> bool:
    """Item by item."""
    return len(gold) == len(answer) and all(
        _same_ends(one, other, grading) for one, other in zip(gold, answer, strict=True)
    )


def _same_ends(gold: Value, answer: Value, grading: Grading) -> bool:
    """Items, where both may be infinite."""
    if isinstance(gold, Expression) and isinstance(answer, Expression) and (is_infinite(gold) or is_infinite(answer)):
        return bool(tree(gold).doit() == tree(answer).doit())
    if is_infinite(gold) or is_infinite(answer):
        return False
    return same(gold, answer, grading)


def _endless(items: Items) -> bool:
    return any(map(is_infinite, items.items))


def _in_any_order(gold: tuple[Value, ...], answer: tuple[Value, ...], grading: Grading) -> bool:
    """Every gold item has an answer of its own."""
    left = list(answer)
    for item in gold:
        match = next((i for i, other in enumerate(left) if _same_ends(item, other, grading)), None)
        if match is None:
            return False
        left.pop(match)
    return not left
