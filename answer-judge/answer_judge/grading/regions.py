"""Sets of real numbers as lists of pieces, from intervals, inequalities and unions of them."""

from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.equality import tree

FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}


def as_set(value: v.Value) -> Any | None:
    """The set of real numbers a value describes, or None where it is not a set."""
    try:
        if isinstance(value, v.Items):
            return _items(value)
        if isinstance(value, v.Inequality):
            return _inequality(value)
        if isinstance(value, v.Region):
            return _region(value)
        return None
    except (TypeError, ValueError, NotImplementedError) as error:
        raise Unreadable(str(error)) from error


def _items(value: v.Items) -> Any | None:
    """An interval, a finite set, or several sets listed."""
    if value.brackets == "{}":
        return sympy.FiniteSet(*map(_end, value.items))
    if not value.brackets:
        sides = [side for item in value.items if isinstance(item, v.Inequality) for side in item.sides]
        trees = [tree(side) for side in sides if isinstance(side, v.Formula)]
        if len(set().union(*(found.free_symbols for found in trees))) > 1:
            return None  # x > 1, y > 2 is no set of numbers
        parts = list(map(as_set, value.items))
        if any(part is None for part in parts):
            return None
        if all(isinstance(item, v.Inequality) for item in value.items):
            union, common = sympy.Union(*parts), sympy.Intersection(*parts)
            return common if value.joiner == "and" or (value.joiner == "," and union == sympy.S.Reals) else union
        return sympy.Union(*parts)  # "and" between intervals adds one to another
    if len(value.items) != 2 or value.brackets[0] not in "([":
        return None
    start, end = map(_end, value.items)
    if not bool(start < end) and not (start == end and value.brackets == "[]"):
        return None
    return sympy.Interval(start, end, value.brackets[0] == "(", value.brackets[1] == ")")


def _end(value: v.Value) -> Any:
    """A number at the end of an interval or in a set."""
    if isinstance(value, v.Named) and len(value.members) == 1:
        value = value.members[0]
    formula = v.as_formula(value)
    if formula is None:
        raise Unreadable("not a number")
    found = tree(formula).doit()
    if found.free_symbols or not (found.is_extended_real):
        raise Unreadable("not a real number")
    return found


def _region(value: v.Region) -> Any | None:
    found, *others = map(as_set, value.parts)
    if found is None or any(part is None for part in others):
        return None
    for sign, part in zip(value.signs, others, strict=True):
        found = {r"\cup": sympy.Union, r"\cap": sympy.Intersection, r"\setminus": sympy.Complement}[sign](found, part)
    return found


def _inequality(value: v.Inequality) -> Any | None:
    """One letter between numbers."""
    sides = [tree(side) for side in value.sides if isinstance(side, v.Formula)]
    if len(sides) < len(value.sides) or len(set().union(*(side.free_symbols for side in sides))) != 1:
        return None
    found = sympy.S.Reals
    for left, sign, right in zip(sides, value.signs, sides[1:], strict=False):
        if not left.free_symbols:
            left, sign, right = right, FLIPPED[sign], left
        if right.free_symbols or not left.free_symbols:
            return None
        part = _half_line(left, sign, right.doit())
        if part is None:
            return None
        found = sympy.Intersection(found, part)
    return found


def _half_line(left: Any, sign: str, bound: Any) -> Any | None:
    """The numbers for which ``left sign bound`` holds; ``left`` is linear in one letter."""
    (symbol,), left = left.free_symbols, left.doit()
    slope = left.diff(symbol)
    if slope.free_symbols or slope == 0:
        return None
    end = (bound - left.subs(symbol, 0)) / slope
    if slope < 0:
        sign = FLIPPED[sign]
    if sign == r"\ne":
        return sympy.Complement(sympy.S.Reals, sympy.FiniteSet(end))
    if sign in (">", r"\ge"):
        return sympy.Interval(end, sympy.oo, sign == ">", True)
    return sympy.Interval(-sympy.oo, end, True, sign == "<")


def same_sets(gold: Any, answer: Any) -> bool:
    gold, answer = (sympy.Union(part, evaluate=True) if part.is_Union else part for part in (gold, answer))
    if gold == answer:
        return True
    left, right = _pieces(gold), _pieces(answer)
    if left is None or right is None or len(left) != len(right):
        return False
    return all(
        one[1:] == other[1:] and all(_same_end(a, b) for a, b in zip(one[0], other[0], strict=True))
        for one, other in zip(left, right, strict=True)
    )


def _pieces(found: Any) -> list[tuple[tuple[Any, Any], bool, bool]] | None:
    """Intervals and points in order, as ((start, end), open at start, open at end)."""
    pieces = []
    for part in found.args if isinstance(found, sympy.Union) else (found,):
        if isinstance(part, sympy.Interval):
            pieces.append(((part.start, part.end), bool(part.left_open), bool(part.right_open)))
        elif isinstance(part, sympy.FiniteSet):
            pieces += [((point, point), False, False) for point in part.args]
        else:
            return None
    return sorted(pieces, key=lambda piece: float(piece[0][0]))


def _same_end(one: Any, other: Any) -> bool:
    if one == other or one.is_infinite or other.is_infinite:
        return bool(one == other)
    return bool(abs(one - other).evalf(30) < sympy.Rational(1, 10**20))


def is_settled(value: v.Value) -> bool:
    """True if a value describes a set and nothing else: an inequality or a union."""
    items = value.items if isinstance(value, v.Items) and not value.brackets else (value,)
    return all(isinstance(item, (v.Inequality, v.Region)) for item in items)
