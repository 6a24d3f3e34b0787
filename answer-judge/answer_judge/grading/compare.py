"""Whether an answer is the gold answer: kind by kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import answer_judge.grading.parts as parts
import answer_judge.grading.units as units
import answer_judge.grading.values as v
from answer_judge.grading.brackets import readable
from answer_judge.grading.cases import same_pieces
from answer_judge.grading.equality import agree, proportional, rational, same_values, tree
from answer_judge.grading.families import same_families
from answer_judge.grading.regions import FLIPPED, as_set, is_settled, letters_of, same_sets
from answer_judge.grading.rules import Grading
from answer_judge.grading.words import of_the_day


def same(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Whether two values are the same answer: by the first of ``_COMPARISONS`` that one of them is for."""
    for applies, compare, _ in _COMPARISONS:
        if applies(gold) or applies(answer):
            return compare(gold, answer, grading)
    assert isinstance(gold, v.Formula) and isinstance(answer, v.Formula)
    return same_values(gold, answer, grading)


def _either(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Some reading of one is some reading of the other; names, options and clock times are only compared as such."""
    golds, answers = v.readings(gold), v.readings(answer)
    if parts.option(golds) and parts.option(answers):
        one, other = parts.behind_option(golds), parts.behind_option(answers)
        agree = one is None or other is None or bool(readable(same, one, other, grading))
        return agree and parts.option(golds) == parts.option(answers)
    if parts.is_spelt(golds) and not isinstance(answer, v.Expression):
        if isinstance(answer, v.Named):
            return _same_members(gold, answer.members, grading)
        golds = golds[:1]
    clocks = [[part for part in some if isinstance(part, v.Text) and ":" in part.words] for some in (golds, answers)]
    for one, other in product(*(clocks if all(clocks) else (golds, answers))):
        if clocks[0] and isinstance(one, v.Items) and isinstance(other, v.Formula):
            continue  # 3:45 may be a time
        if readable(same, one, other, grading):
            return True
    return False


def _by(compare: Callable[[v.Value, v.Value, Callable[[v.Value, v.Value], bool]], bool]) -> "_Comparison":
    """A comparison that is told how the values within are compared."""

    def compared(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
        return compare(gold, answer, lambda one, other: bool(readable(same, one, other, grading)))

    return compared


def _same_texts(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """The same option, or the same words."""
    if not (isinstance(gold, v.Text) and isinstance(answer, v.Text)):
        return False
    if gold.option:
        return gold.option == answer.option
    if gold.words == answer.words:
        return True
    clock, other = sorted((gold.words, answer.words), key=len)
    if ":" in clock and other.startswith(f"{clock} "):
        return True  # 12:30 and 12:30 pm
    return of_the_day(gold.words) == of_the_day(answer.words) != ""


def _same_quantities(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Values with units: converted where both units are known and measure the same."""
    if not isinstance(gold, v.Quantity):
        assert isinstance(answer, v.Quantity)
        if parts.is_capital(gold) or units.in_pairs(answer.unit.label):
            return False  # an option or a name; 12 pairs may be 24
        if answer.unit == units.PERCENT:
            return _same_percent(gold, answer.value, grading)
        return same(gold, answer.value, grading) or _same_angles(gold, answer, grading)
    if not isinstance(answer, v.Quantity):
        percent = gold.unit == units.PERCENT and _scaled(gold, answer, units.PERCENT, grading)
        return percent or same(gold.value, answer, grading) or _same_angles(gold, answer, grading)
    if gold.unit.label and answer.unit.label:
        return units.compatible_labels(gold.unit.label, answer.unit.label) and same(gold.value, answer.value, grading)
    if gold.unit.label or answer.unit.label:
        known, label = (answer.unit, gold.unit.label) if gold.unit.label else (gold.unit, answer.unit.label)
        return units.compatible_label(known, label) and same(gold.value, answer.value, grading)
    if not units.same_dimension(gold.unit, answer.unit):
        return _same_angles(gold, answer, grading)
    if gold.unit.factor == answer.unit.factor:
        return same(gold.value, answer.value, grading)
    return _scaled(gold, answer.value, v.Unit(factor=gold.unit.factor / answer.unit.factor), grading)


def _same_angles(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Whether one is in degrees, the other in radians, said so or seen, and both are the same angle."""
    given = [value.unit if isinstance(value, v.Quantity) else None for value in (gold, answer)]
    values = [v.without_unit(value) for value in (gold, answer)]
    if given.count(units.DEGREE) != 1 or any(unit not in (units.DEGREE, units.RADIAN, None) for unit in given):
        return False
    if any(unit is None and not parts.in_angles(value) for unit, value in zip(given, values, strict=True)):
        return False
    angles = [
        parts.in_radians(value) if unit == units.DEGREE else value for unit, value in zip(given, values, strict=True)
    ]
    return all(isinstance(angle, v.Formula) for angle in angles) and same(angles[0], angles[1], grading)


def _scaled(gold: v.Quantity, answer: v.Value, unit: v.Unit, grading: Grading) -> bool:
    """Whether an answer is the gold value times the factor of a unit."""
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
        renamed = answer
        if gold.argument != answer.argument and gold.name == answer.name:
            renamed = parts.with_argument(answer, gold.argument)
        if (gold.name == renamed.name and gold.argument == renamed.argument) or parts.is_graph(gold, answer):
            return _same_members(gold.members[-1], renamed.members, grading)
        return _same_equations(gold, answer, grading)
    if isinstance(gold, v.Named):
        if isinstance(answer, v.Equation):
            return _same_equations(gold, answer, grading)
        if is_settled(answer):
            return False
        return same(gold.members[-1], v.quotient(answer) if ":" in gold.name else answer, grading)
    assert isinstance(answer, v.Named)
    if parts.is_capital(gold) and len(answer.name) == 1 and answer.name.isupper():
        return False  # B = A for A
    if isinstance(gold, v.Equation):
        return _same_equations(gold, answer, grading)
    if parts.is_number(gold):
        return _same_members(gold, parts.without_names(answer.members), grading)
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
    """Whether formulas side by side are one number, in several forms."""
    return all(agree(one, other) for one, other in combinations(values, 2))


def _is_decimal(value: v.Value) -> bool:
    value = v.without_unit(value)
    return isinstance(value, v.Number) and value.step is not None


def _same_equations(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Two equations that say the same, or a value and a true chain of constants that ends in it."""
    gold = v.quotient(gold)
    if isinstance(gold, v.Equation) and all(map(parts.is_number, gold.sides)):
        gold = gold.sides[0]
    if isinstance(answer, v.Equation) and all(map(parts.is_number, answer.sides)):
        return parts.is_number(gold) and _same_members(gold, answer.sides, grading)
    if parts.is_number(gold) and parts.is_number(answer):
        return same(gold, answer, grading)
    if isinstance(answer, v.Equation) and parts.says_what_was_asked(answer.sides[0], gold):
        return _same_members(gold, answer.sides[1:], grading)
    if isinstance(gold, v.Equation) and parts.is_number(answer) and parts.says_its_value(gold):
        return same(gold.sides[1], answer, grading)
    left, right = parts.both_sides(gold), parts.both_sides(answer)
    return left is not None and right is not None and proportional(left, right)


def _same_regions(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Sets of real numbers, however they are written; inequalities in several letters one by one."""
    if isinstance(gold, v.Inequality) and isinstance(answer, v.Inequality):
        sides = [side for part in (gold, answer) for side in part.sides]
        if len(sides) == 4 and all(isinstance(side, v.Formula) for side in sides):
            left, right, *others = (tree(side) for side in sides if isinstance(side, v.Formula))
            if len((left - right).free_symbols) > 1:
                return parts.same_inequalities(gold.signs[0], (left, right), answer.signs[0], (others[0], others[1]))
    lists = [value.items if isinstance(value, v.Items) and not value.brackets else (value,) for value in (gold, answer)]
    if max(map(len, lists)) > 1 and max(len(letters_of(items)) for items in lists) > 1:

        def fits(one: v.Value, other: v.Value) -> bool:
            return letters_of((one,)) == letters_of((other,)) and same(one, other, grading)

        return v.matched(lists[0], lists[1], fits)
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
    gold, answer = parts.as_rows(gold), parts.as_rows(answer)
    if isinstance(gold, v.Matrix) and isinstance(answer, v.Matrix):
        shapes = [(len(matrix.rows), len(matrix.rows[0]), matrix.bars) for matrix in (gold, answer)]
        cells = [[cell for row in matrix.rows for cell in row] for matrix in (gold, answer)]
        pairs = zip(cells[0], cells[1], strict=False)
        return shapes[0] == shapes[1] and all(same(one, other, grading) for one, other in pairs)
    column, other = parts.as_column(gold), parts.as_column(answer)
    return column is not None and other is not None and _in_order(column, other, grading)


def _same_items(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Lists and sets in any order, tuples and intervals in theirs; a quotient for a ratio, and no ratio for one."""
    is_one = not isinstance(gold, v.Items) or gold.brackets == ":"
    if isinstance(gold, v.Items) and is_one and isinstance(answer, v.Formula):
        return len(gold.items) == 2 and same(v.quotient(gold), answer, grading)
    if is_one and isinstance(answer, v.Items) and not answer.brackets:  # one value in several forms
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
        if parts.in_their_order(gold.items, answer.items):
            return _in_order(gold.items, answer.items, grading)
        if len(labels := parts.labels(gold.items)) > 1 and labels == parts.labels(answer.items):
            return v.matched(
                gold.items,
                answer.items,
                lambda one, other: parts.labels((one,)) == parts.labels((other,)) and fits(one, other),
            )
        return v.matched(gold.items, answer.items, fits)
    if "ab" in kinds and kinds & {"", "{}"}:
        return _in_order(gold.items, answer.items, grading)
    if kinds == {"", "()"}:
        listed = parts.by_letter(answer.items) if not answer.brackets else answer.items
        if any(map(parts.is_infinite, (*gold.items, *answer.items))):
            return False  # an interval is no list of its ends
        matched = grading.several is True and v.matched(gold.items, listed, fits)
        return matched or _in_order(gold.items, listed, grading)
    if kinds == {"()", "[]"} and len(gold.items) > 2:
        return _in_order(gold.items, answer.items, grading)  # a vector: no interval has three ends
    return len(kinds) == 1 and _in_order(gold.items, answer.items, grading)


def _in_order(gold: tuple[v.Value, ...], answer: tuple[v.Value, ...], grading: Grading) -> bool:
    return len(gold) == len(answer) and all(
        _same_ends(one, other, grading) for one, other in zip(gold, answer, strict=True)
    )


def _same_ends(gold: v.Value, answer: v.Value, grading: Grading) -> bool:
    """Items, where both may be infinite."""
    infinite = parts.is_infinite(gold) or parts.is_infinite(answer)
    if infinite and isinstance(gold, v.Expression) and isinstance(answer, v.Expression):
        return bool(gold.tree.doit() == answer.tree.doit())
    return not infinite and same(gold, answer, grading)


def _is(kind: type) -> Callable[[v.Value], bool]:
    return lambda value: isinstance(value, kind)


_Comparison = Callable[[v.Value, v.Value, Grading], bool]
_CASES = r"\begin{cases} 1 & x>0 \\ 0 & x\le 0 \end{cases}"
_COMPARISONS: tuple[tuple[Callable[[v.Value], bool], _Comparison, tuple[str, str]], ...] = (
    (_is(v.Either), _either, ("D", r"\text{(D)}")),  # first: "(D) 14" is the option too
    (_is(v.Family), _by(same_families), (r"k\pi, k \in \mathbb{Z}", r"n\pi, n \in \mathbb{Z}")),
    (_is(v.Text), _same_texts, ("the East", "east")),
    (_is(v.Quantity), _same_quantities, ("9 ft", "3 yards")),
    # A name or an equation before what it says.
    (_is(v.Named), _same_named, ("x=(1,2)", "(1,2)")),
    (_is(v.Equation), _same_equations, (r"A \cup B=\{1,2\}", r"\{1,2\}")),
    (_is(v.Pieces), _by(same_pieces), (_CASES, _CASES)),
    # A set of numbers and a column before a list: an interval is written like one, a column may be.
    (is_settled, _same_regions, (r"[6,\infty)", r"k \ge 6")),
    (_is(v.Matrix), _same_matrices, (r"\begin{pmatrix}1\\2\\3\end{pmatrix}", "(1,2,3)")),
    (_is(v.Items), _same_items, ("1, 2", "2, 1")),
    (_is(v.Based), lambda gold, answer, grading: gold == answer, ("63_8", r"63_{\text{eight}}")),
)
"""What values of each kind are compared by, from the outside in, each with two answers that it finds to be the same."""
