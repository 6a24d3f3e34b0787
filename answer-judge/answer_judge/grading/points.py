"""The points at which formulas with letters are compared, and their values there.

Two different answers to one question do not agree at all of the points; two forms of the same one do, with any algebra
between, and no simplification has to be found. A point says nothing if only one side is real there, as ``2 \\ln x``
and ``\\ln x^2`` below 0. Absolute values, floors and ceilings count as letters: no number of points shows that two of
them are the same.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import sympy

from answer_judge.grading.brackets import Unreadable

POINT_DIGITS = 30
POINT_NEAR = sympy.Rational(1, 10**20)
LEAST_POINTS = 3
_POINTS = (
    ("1.3717421", "0.7717171", "2.1234577", "0.3183099", "1.6180339"),
    ("2.7182718", "3.3166247", "0.5671433", "1.2020569", "4.6692016"),
    ("-1.4513692", "2.2360679", "-0.8346268", "3.6252560", "-2.5029078"),
    ("0.2614972", "-1.7320508", "1.1319882", "-0.9159655", "0.6243299"),
    ("-0.5960171", "-2.3999632", "-3.1622776", "-1.8393284", "-1.0986122"),
    ("0.8414709", "1.5707963", "2.6651441", "0.4342944", "1.2824271"),
    ("3.3598856", "0.3798845", "1.4513692", "2.0945514", "0.9189385"),
    ("-0.3736558", "-1.7818046", "-2.8077702", "-0.6434105", "-3.2758229"),
    ("-2.0783728", "0.7390851", "1.9021605", "3.0591160", "0.5822405"),
    ("1.1865691", "2.5066282", "0.6617071", "1.7632228", "3.6272931"),
    ("7.3890561", "9.8696044", "11.0901699", "13.8155106", "17.0794684"),
    ("12.182494", "4.4428829", "9.4247780", "3.4641016", "6.9077553"),
    ("5.1327314", "8.2831853", "4.1961524", "6.5397342", "10.0265131"),
)
"""Those behind the first are tried where too few of those say something."""
_FIRST_POINTS = 5
_STEEP = (sympy.exp, sympy.sinh, sympy.cosh, sympy.tanh)
_FARTHEST = 1000.0
"""Digits from 1 beyond which a constant is refused, and a term with letters is not seen."""
_LOG_2 = math.log10(2)
_MOST_NUMBERS = 12
"""Numbers of two formulas that are looked at from both sides."""
_KINKS = (sympy.floor, sympy.ceiling, sympy.Abs)


def more_digits(one: Any, other: Any) -> int:
    """Digits by which two formulas are compared more exactly, so that no number in them is too small to be seen."""
    reach = max(_reach(one), _reach(other))
    if reach > _FARTHEST and not (one.free_symbols or other.free_symbols):
        raise Unreadable("a number that is too large or too small")
    return 2 * math.ceil(min(reach, _FARTHEST))


def _reach(formula: Any) -> float:
    """How many digits the numbers in a formula, and its constant powers, are away from 1."""
    if formula.is_Rational:
        return _LOG_2 * (max(abs(formula.p), formula.q).bit_length() - 1)
    parts = [0.0, *map(_reach, formula.args)]
    inner = max(parts) if formula.is_Add else sum(parts)
    if formula.is_Pow and formula.exp.is_number:
        far = formula.base.is_number and not formula.base.is_Rational
        far_from_one = _at_most(sympy.log(abs(formula.base.evalf(5)))) if far else 0.0
        return _at_most(formula.exp) * max(inner, far_from_one)
    if isinstance(formula, _STEEP) or formula.is_Pow:
        at_one = formula.args[-1].xreplace({letter: sympy.Integer(1) for letter in formula.free_symbols})
        return max(inner, _at_most(at_one))
    return inner


def _at_most(number: Any) -> float:
    """The size of a number, where it is no larger than what is looked at."""
    value = abs(number.evalf(5))
    return float(value) if value.is_comparable and value < 10 * _FARTHEST else 10.0 * _FARTHEST


def values_at_points(one: Any, other: Any, digits: int = POINT_DIGITS) -> Iterator[tuple[Any, Any]]:
    """The values of two formulas at the points where both have one, as pairs.

    A point at which a number below 0 comes under a root or a logarithm says nothing, unless there are too few others:
    ``\\sqrt{x}\\sqrt{y}`` and ``\\sqrt{xy}`` are the same wherever both are meant.
    """
    one, other = _with_names((one, other))
    names = sorted(one.free_symbols | other.free_symbols, key=str)
    if len(names) > 25:
        raise Unreadable("too many letters")
    if any(power.base == 0 and power.exp.free_symbols for power in one.atoms(sympy.Pow) | other.atoms(sympy.Pow)):
        raise Unreadable("a power of 0")
    positive = _not_below_zero(one) | _not_below_zero(other)
    said, put_off = 0, []
    for needed, at in _points(one, other, names):
        if not needed and said >= LEAST_POINTS:
            continue
        if any((value := part.evalf(15, subs=at)).is_real and value < 0 for part in positive):
            put_off.append(at)
        elif pair := _values_at(at, one, other, digits):
            said += 1
            yield pair
    if said < LEAST_POINTS:
        for at in put_off:
            if pair := _values_at(at, one, other, digits):
                said += 1
                yield pair
        if said < LEAST_POINTS:
            raise Unreadable("no value at enough points")


def _points(one: Any, other: Any, names: list[Any]) -> Iterator[tuple[bool, dict[Any, Any]]]:
    """The points, each with whether it is tried even if enough others have said something.

    Squares under roots are looked at near each number of a formula and far out, because two formulas may agree on one
    side of a kink.
    """
    if _has_square_roots(one) or _has_square_roots(other):
        yield from ((True, at) for at in _around_numbers(one, other, names))
    for point in range(len(_POINTS)):
        yield point < _FIRST_POINTS, {name: _coordinate(point, i) for i, name in enumerate(names)}


def _around_numbers(one: Any, other: Any, names: list[Any]) -> Iterator[dict[Any, Any]]:
    """Points next to the numbers in two formulas, on both sides of 0, and beyond all of them."""
    numbers = sorted({abs(number) for formula in (one, other) for number in formula.atoms(sympy.Rational)})[
        -_MOST_NUMBERS:
    ]
    far = 3 * (1 + sum(numbers))
    for centre in (*numbers, far):
        for sign, row in ((1, _POINTS[3]), (-1, _POINTS[4])):
            yield {
                name: sign * centre + sympy.Rational(row[i % len(row)]) * (1 + i // len(row))
                for i, name in enumerate(names)
            }


def _values_at(at: Mapping[Any, Any], one: Any, other: Any, digits: int) -> tuple[Any, Any] | None:
    """The values at one point, unless one of them has none, or only one is real."""
    left, right = (formula.evalf(digits, subs=at) for formula in (one, other))
    if not (is_finite(left) and is_finite(right)):
        return None
    if _is_real(left) != _is_real(right) and not (one.has(sympy.I) or other.has(sympy.I)):
        return None
    return left, right


def _not_below_zero(formula: Any) -> set[Any]:
    """What stands under roots and in logarithms, where it has letters in it."""
    roots = {power.base for power in formula.atoms(sympy.Pow) if not power.exp.is_integer}
    return {part for part in roots | {log.args[0] for log in formula.atoms(sympy.log)} if part.free_symbols}


def _coordinate(point: int, i: int) -> Any:
    """The value of the i-th letter at a point; letters beyond the fifth get other values."""
    row = _POINTS[point]
    lap, place = divmod(i, len(row))
    return sympy.Rational(row[place]) + sympy.Rational(lap * 37, 61)


def is_finite(value: Any) -> bool:
    return bool(value.is_number and value.is_finite and value.is_complex)


def _is_real(value: Any) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= POINT_NEAR * max(abs(real), POINT_NEAR))


def _has_square_roots(formula: Any) -> bool:
    """True if an even power stands under a root, so that the sign changes beyond some number."""
    roots = (power.base for power in formula.atoms(sympy.Pow) if not power.exp.is_integer and power.base.free_symbols)
    return any(inner.exp.is_even for base in roots for inner in base.atoms(sympy.Pow))


def _with_names(formulas: tuple[Any, Any]) -> tuple[Any, ...]:
    """Formulas with a name for each absolute value, floor and ceiling, so that only like ones are the same."""
    names: dict[Any, Any] = {}
    for part in sorted({part for formula in formulas for part in _outermost(formula)}, key=str):
        name = next((name for known, name in names.items() if _alike(known, part)), None)
        names[part] = sympy.Symbol(f"|{len(names)}|") if name is None else name
    return tuple(formula.xreplace(names) for formula in formulas)


def _outermost(formula: Any) -> list[Any]:
    if isinstance(formula, _KINKS):
        return [formula] if formula.free_symbols else []
    return [part for argument in formula.args for part in _outermost(argument)]


def _alike(one: Any, other: Any) -> bool:
    inner, outer = one.args[0], other.args[0]
    signs = (1, -1) if isinstance(one, sympy.Abs) else (1,)
    return one.func == other.func and any((inner - sign * outer).expand() == 0 for sign in signs)
