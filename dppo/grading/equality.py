"""Whether two formulas are equal, or as near as a benchmark allows.

Rational numbers are compared exactly, other constants by many digits. Formulas with letters are compared at fixed
points, some of them negative and some whole, to 20 digits. Two different answers to one question do not agree at all of
them; two forms of the same one do, whatever algebra lies between, and no simplification has to be found. Where one side
is real and the other is not (``2 \\ln x`` and ``\\ln x^2`` below 0), a point says nothing.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import sympy

import dppo.grading.values as v
from dppo.grading.numbers import endless, shortened
from dppo.grading.rules import Grading
from dppo.grading.text import Unreadable

CONSTANT_DIGITS = 60
POINT_DIGITS = 30
_CONSTANT_NEAR = sympy.Rational(1, 10**45)
_POINT_NEAR = sympy.Rational(1, 10**20)
_POINTS = (
    ("1.3717421", "0.7717171", "2.1234577", "0.3183099", "1.6180339"),
    ("2.7182718", "3.3166247", "0.5671433", "1.2020569", "4.6692016"),
    ("-1.4513692", "2.2360679", "-0.8346268", "3.6252560", "-2.5029078"),
    ("0.2614972", "-1.7320508", "1.1319882", "-0.9159655", "0.6243299"),
    ("-0.5960171", "-2.3999632", "-3.1622776", "-1.8393284", "-1.0986122"),
)
_MORE_POINTS = (
    ("0.8414709", "1.5707963", "2.6651441", "0.4342944", "1.2824271"),
    ("3.3598856", "0.3798845", "1.4513692", "2.0945514", "0.9189385"),
    ("-0.3736558", "-1.7818046", "-2.8077702", "-0.6434105", "-3.2758229"),
    ("-2.0783728", "0.7390851", "1.9021605", "3.0591160", "0.5822405"),
    ("1.1865691", "2.5066282", "0.6617071", "1.7632228", "3.6272931"),
    ("7.3890561", "9.8696044", "11.0901699", "13.8155106", "17.0794684"),
    ("12.182494", "4.4428829", "9.4247780", "3.4641016", "6.9077553"),
    ("5.1327314", "8.2831853", "4.1961524", "6.5397342", "10.0265131"),
)
"""Tried where too few of the points above say something."""
_WHOLE_POINTS = 30
_WHOLE = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Mod)
LEAST_POINTS = 3
LARGEST_ROUNDING = Fraction(1, 20)
"""Half a unit in the last digit may be at most this share of a gold value for it to count as rounded."""


def tree(value: v.Formula) -> Any:
    """The sympy expression of a number or formula."""
    if isinstance(value, v.Number):
        return sympy.Rational(value.value.numerator, value.value.denominator)
    return value.tree


def rational(value: v.Formula) -> Fraction | None:
    """The exact value, where it is a rational number."""
    if isinstance(value, v.Number):
        return value.value
    if value.tree.free_symbols:
        return None
    done = value.tree.doit()
    return to_fraction(done) if done.is_Rational else None


def is_constant(value: v.Formula) -> bool:
    return isinstance(value, v.Number) or not value.tree.free_symbols


def same_values(gold: v.Formula, answer: v.Formula, grading: Grading) -> bool:
    """Numbers and formulas: equal, or near enough where the benchmark says so."""
    return same_formulas(gold, answer) or (not grading.exact and _close(gold, answer, grading))


def _pairs(gold: Any, answer: Any) -> list[tuple[Any, Any]]:
    """What must be near each other in two formulas: the coefficients of polynomials, else the values at points.

    A large term would hide a wrong small one if values alone were compared: ``125 - 1.5 P`` for ``125 - 1.25 P``.
    """
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if gold.is_polynomial(*letters) and answer.is_polynomial(*letters):
        one, other = (sympy.Poly(formula, *letters) for formula in (gold, answer))
        return [(one.coeff_monomial(p), other.coeff_monomial(p)) for p in {*one.monoms(), *other.monoms()}]
    return list(values_at_points(gold, answer))


def _close(gold: v.Formula, answer: v.Formula, grading: Grading) -> bool:
    if not (is_constant(gold) and is_constant(answer)):
        if not (isinstance(gold, v.Expression) and gold.decimal and grading.relative):
            return False
        pairs = _pairs(tree(gold), tree(answer))
        return all(bool(abs(one - other) <= grading.relative * abs(one)) for one, other in pairs)
    values = []
    for value in (gold, answer):
        exact = rational(value)
        found = None if exact is not None else constant(value)
        if found is not None and not found.is_real:
            return False
        values.append(exact if exact is not None else to_fraction(found))
    size, gap = abs(values[0]), abs(values[0] - values[1])
    if gap <= Fraction(grading.relative) * size or gap <= Fraction(grading.absolute) * (1 + Fraction(1, 10**9)):
        return True
    if not (grading.rounded_from and isinstance(gold, v.Number) and gold.step and gold.digits >= grading.rounded_from):
        return False
    return gap <= gold.step / 2 <= LARGEST_ROUNDING * size


def same_formulas(gold: v.Formula, answer: v.Formula) -> bool:
    """Whether two formulas have the same value, everywhere."""
    if isinstance(gold, v.Expression) and isinstance(answer, v.Expression) and gold.latex == answer.latex:
        return True
    if is_constant(gold) and is_constant(answer):
        return _same_constants(gold, answer)
    one, other = aligned(tree(gold), tree(answer))
    return all(near(left, right, _POINT_NEAR) for left, right in values_at_points(one, other))


def _same_constants(gold: v.Formula, answer: v.Formula) -> bool:
    """Whether two formulas without letters have the same value; infinity is one."""
    if any(isinstance(value, v.Expression) and value.tree.is_infinite for value in (gold, answer)):
        return bool(tree(gold) == tree(answer))
    exact, found = rational(gold), rational(answer)
    if exact is not None and found is not None:
        if exact == found:
            return True
        return isinstance(answer, v.Number) and endless(exact) and shortened(exact, answer)
    left, right = constant(gold), constant(answer)
    if near(left, right, _CONSTANT_NEAR):
        return True
    if isinstance(answer, v.Number) and exact is None and left.is_real:
        return shortened(to_fraction(left), answer)
    return False


def constant(value: v.Formula) -> Any:
    """The value of a formula without letters, to many digits."""
    found = tree(value).evalf(CONSTANT_DIGITS)
    if not _finite(found):
        raise Unreadable("no finite value")
    return found


def to_fraction(value: Any) -> Fraction:
    return Fraction(*map(int, sympy.Rational(value).as_numer_denom()))


def near(left: Any, right: Any, share: Any) -> bool:
    """Whether two values differ by at most a share of the larger one, or are both 0."""
    if vanishes(left) or vanishes(right):
        return vanishes(left) and vanishes(right)
    return bool(abs(left - right) <= share * max(abs(left), abs(right)))


def vanishes(value: Any) -> bool:
    """Whether a value is 0, or so near to it that sympy found no digit of it: it then gives one bit of precision."""
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in value.as_real_imag())


def values_at_points(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """The values of two formulas at the points where both have one, as pairs.

    A point at which a number below 0 comes under a root or a logarithm says nothing, unless there are too few others:
    ``\\sqrt{x}\\sqrt{y}`` and ``\\sqrt{xy}`` are the same wherever both are meant.
    """
    names = sorted(one.free_symbols | other.free_symbols, key=str)
    if len(names) > 25:
        raise Unreadable("too many letters")
    whole = one.has(*_WHOLE) or other.has(*_WHOLE) or _alternates(one) or _alternates(other)
    positive = _not_below_zero(one) | _not_below_zero(other)
    said, put_off = 0, []
    for point in range(_WHOLE_POINTS if whole else len(_POINTS) + len(_MORE_POINTS)):
        if not whole and point >= len(_POINTS) and said >= LEAST_POINTS:
            return
        at = {name: (_whole_coordinate if whole else _coordinate)(point, i) for i, name in enumerate(names)}
        if any((value := part.evalf(15, subs=at)).is_real and value < 0 for part in positive):
            put_off.append(at)
        elif pair := _values_at(at, one, other):
            said += 1
            yield pair
    if said < LEAST_POINTS:
        for at in put_off:
            if pair := _values_at(at, one, other):
                said += 1
                yield pair
        if said < LEAST_POINTS:
            raise Unreadable("no value at enough points")


def _values_at(at: Mapping[Any, Any], one: Any, other: Any) -> tuple[Any, Any] | None:
    """The values at one point, unless one of them has none or only one is real."""
    left, right = one.evalf(POINT_DIGITS, subs=at), other.evalf(POINT_DIGITS, subs=at)
    if not (_finite(left) and _finite(right)):
        return None
    if _is_real(left) != _is_real(right) and not (one.has(sympy.I) or other.has(sympy.I)):
        return None
    return left, right


def _not_below_zero(formula: Any) -> set[Any]:
    """What stands under roots and in logarithms, where it has letters in it."""
    roots = {power.base for power in formula.atoms(sympy.Pow) if not power.exp.is_integer}
    return {part for part in roots | {log.args[0] for log in formula.atoms(sympy.log)} if part.free_symbols}


def _coordinate(point: int, i: int) -> Any:
    """The value of the i-th letter at a point; letters beyond the fifth get values of their own."""
    row = (*_POINTS, *_MORE_POINTS)[point]
    lap, place = divmod(i, len(row))
    return sympy.Rational(row[place]) + sympy.Rational(lap * 37, 61)


def _whole_coordinate(point: int, i: int) -> Any:
    """The value of the i-th letter at a whole point: the first takes every value from 2 on, the others stay small."""
    return sympy.Integer(2 + point if i == 0 else 1 + point * (2 * i + 1) % (3 + 2 * i))


def _alternates(formula: Any) -> bool:
    """Whether a negative number is raised to a letter, as in ``(-1)^n``."""
    return any(power.base.is_negative and power.exp.free_symbols for power in formula.atoms(sympy.Pow))


def _finite(value: Any) -> bool:
    return bool(value.is_number and value.is_finite and value.is_complex)


def _is_real(value: Any) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= _POINT_NEAR * max(abs(real), _POINT_NEAR))


def aligned(one: Any, other: Any) -> tuple[Any, Any]:
    """Both formulas with derivatives named alike: ``y'`` is ``dy/dt`` where only one side says by what."""
    left, right = (_with_respect(formula) for formula in (one, other))
    if left and right and any(left.values()) != any(right.values()):
        return tuple(
            formula.xreplace({symbol: sympy.Symbol(symbol.name.split("WRT")[0]) for symbol in found})
            for formula, found in ((one, left), (other, right))
        )
    return one, other


def _with_respect(formula: Any) -> Mapping[Any, bool]:
    """Whether each derivative in a formula says by what."""
    return {symbol: "WRT" in symbol.name for symbol in formula.free_symbols if symbol.name.startswith("DER")}


def proportional(gold: tuple[Any, Any], answer: tuple[Any, Any], positive: bool = False) -> bool:
    """Whether two equations say the same: the differences of their sides are a constant multiple of each other.

    ``positive`` wants a multiple above 0, as for inequalities.
    """
    one, other = aligned(gold[0] - gold[1], answer[0] - answer[1])
    if _proportional(one, other, positive):
        return True
    tops = [sympy.fraction(sympy.together(side))[0] for side in (one, other)]
    return not positive and tops != [one, other] and _proportional(tops[0], tops[1], positive)


def _proportional(one: Any, other: Any, positive: bool) -> bool:
    ratios = []
    for left, right in values_at_points(one, other):
        if vanishes(left) or vanishes(right):
            if vanishes(left) and vanishes(right):
                continue
            return False
        ratios.append(right / left)
    if len(ratios) < LEAST_POINTS:
        raise Unreadable("no value at enough points")
    same = all(near(ratios[0], ratio, _POINT_NEAR) for ratio in ratios[1:])
    return same and (not positive or bool(sympy.re(ratios[0]) > 0))
