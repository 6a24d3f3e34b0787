"""Equality of two formulas, or nearness as a benchmark allows it.

Rational numbers are compared exactly, other constants by many digits, formulas with letters at ``points``.
"""

from fractions import Fraction
from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.points import LEAST_POINTS, POINT_DIGITS, is_finite, more_digits, values_at_points
from answer_judge.grading.rules import Grading

CONSTANT_DIGITS = 60
_SPARE_DIGITS = 10
"""How many of the digits of a value may be wrong."""
LARGEST_ROUNDING = Fraction(1, 20)
"""Half a unit in the last digit may be at most this share of a gold value for it to count as rounded."""
ENOUGH_DIGITS = 6
"""Significant digits from which a decimal stands for the endless number it is cut from."""
FEWEST_DIGITS = 2
"""Significant digits of a decimal that may follow the exact value in a chain, as in ``\\sqrt{2} = 1.41``."""


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
    """The coefficients of two polynomials, else values at points: a large term would hide a wrong small one."""
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not (gold.is_polynomial(*letters) and answer.is_polynomial(*letters)):
        return list(values_at_points(gold, answer))
    one, other = (sympy.Poly(formula, *letters) for formula in (gold, answer))
    return [(one.coeff_monomial(p), other.coeff_monomial(p)) for p in {*one.monoms(), *other.monoms()}]


def _close(gold: v.Formula, answer: v.Formula, grading: Grading) -> bool:
    if not (is_constant(gold) and is_constant(answer)):
        if not (isinstance(gold, v.Expression) and gold.decimal and grading.relative):
            return False
        pairs = _pairs(tree(gold), tree(answer))
        return all(bool(abs(one - other) <= grading.relative * abs(one)) for one, other in pairs)
    exact, found = _exactly(gold), _exactly(answer)
    if exact is None or found is None:
        return False
    size, gap = abs(exact), abs(exact - found)
    if gap <= Fraction(grading.relative) * size or gap <= Fraction(grading.absolute) * (1 + Fraction(1, 10**9)):
        return True
    if not (grading.rounded_from and isinstance(gold, v.Number) and gold.step and gold.digits >= grading.rounded_from):
        return False
    return gap <= gold.step / 2 <= LARGEST_ROUNDING * size


def same_formulas(gold: v.Formula, answer: v.Formula) -> bool:
    """True if two formulas have the same value, everywhere."""
    if isinstance(gold, v.Expression) and isinstance(answer, v.Expression) and gold.latex == answer.latex:
        return True
    if v.words(gold) != v.words(answer):
        return False
    if is_constant(gold) and is_constant(answer):
        return _same_constants(gold, answer)
    one, other = aligned(tree(gold), tree(answer))
    digits = POINT_DIGITS + more_digits(one, other)
    return all(near(left, right, digits) for left, right in values_at_points(one, other, digits))


def _same_constants(gold: v.Formula, answer: v.Formula) -> bool:
    """True if two formulas without letters have the same value; infinity is one."""
    if any(isinstance(value, v.Expression) and value.tree.is_infinite for value in (gold, answer)):
        return bool(tree(gold) == tree(answer))
    exact, found = rational(gold), rational(answer)
    if exact is not None and found is not None:
        forms = ((exact, answer), (found, gold))
        return exact == found or any(endless(value) and shortened(value, decimal) for value, decimal in forms)
    if tree(gold) == tree(answer):
        return True
    digits = CONSTANT_DIGITS + more_digits(tree(gold), tree(answer))
    left, right = constant(gold, digits), constant(answer, digits)
    if near(left, right, digits):
        return True
    if not (left.is_real and right.is_real):
        return False
    if exact is None and shortened(to_fraction(left), answer):
        return True
    return found is None and shortened(to_fraction(right), gold)


def agree(one: v.Formula, other: v.Formula) -> bool:
    r"""True if two formulas side by side say one number: ``\sqrt{2} = 1.41`` do, ``\sqrt{2} = 1.42`` do not."""
    if same_formulas(one, other):
        return True
    if not (is_constant(one) and is_constant(other)):
        return False
    values = ((_exactly(one), other), (_exactly(other), one))
    return any(value is not None and shortened(value, decimal, FEWEST_DIGITS) for value, decimal in values)


def _exactly(value: v.Formula) -> Fraction | None:
    """The value of a constant, to many digits; None where it is not real."""
    if (exact := rational(value)) is not None:
        return exact
    found = constant(value)
    return to_fraction(found) if found.is_real else None


def constant(value: v.Formula, digits: int = CONSTANT_DIGITS) -> Any:
    """The value of a formula without letters, to many digits."""
    found = tree(value).evalf(digits)
    if not is_finite(found):
        raise Unreadable("no finite value")
    return found


def to_fraction(value: Any) -> Fraction:
    return Fraction(*map(int, sympy.Rational(value).as_numer_denom()))


def near(left: Any, right: Any, digits: int) -> bool:
    """True if two values are the same in all of so many digits but the last ones, or both 0."""
    if vanishes(left) or vanishes(right):
        return vanishes(left) and vanishes(right)
    return bool(abs(left - right) <= max(abs(left), abs(right)) / sympy.Integer(10) ** (digits - _SPARE_DIGITS))


def vanishes(value: Any) -> bool:
    """True if a value is 0, or so near to it that sympy found no digit of it: it then gives one bit of precision."""
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in value.as_real_imag())


def aligned(one: Any, other: Any) -> tuple[Any, Any]:
    """Both formulas with derivatives named alike: ``y'`` is ``dy/dt`` if only one side says by what."""
    derivatives = [[s for s in formula.free_symbols if s.name.startswith("DER")] for formula in (one, other)]
    left, right = (any("WRT" in symbol.name for symbol in found) for found in derivatives)
    if not all(derivatives) or left == right:
        return one, other
    bare = {symbol: sympy.Symbol(symbol.name.split("WRT")[0]) for found in derivatives for symbol in found}
    return one.xreplace(bare), other.xreplace(bare)


def proportional(gold: tuple[Any, Any], answer: tuple[Any, Any]) -> bool:
    """True if the differences of the sides of two equations are constant multiples."""
    one, other = aligned(gold[0] - gold[1], answer[0] - answer[1])
    if _proportional(one, other):
        return True
    tops = [sympy.fraction(sympy.together(side))[0] for side in (one, other)]
    return tops != [one, other] and _proportional(*tops)


def _proportional(one: Any, other: Any) -> bool:
    ratios = []
    digits = POINT_DIGITS + more_digits(one, other)
    for left, right in values_at_points(one, other, digits):
        if vanishes(left) or vanishes(right):
            if vanishes(left) and vanishes(right):
                continue
            return False
        ratios.append(right / left)
    if len(ratios) < LEAST_POINTS:
        raise Unreadable("no value at enough points")
    return all(near(ratios[0], ratio, digits) for ratio in ratios[1:])


def endless(value: Fraction) -> bool:
    """True if a number has no finite decimal form, so that a decimal can only be near it."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def rounds_to(value: Fraction, decimal: v.Number) -> bool:
    """True if a decimal is a value rounded, half either way, or cut off, at the decimal's own last digit.

    >>> [rounds_to(Fraction(2, 3), v.Number(Fraction(n, 100), Fraction(1, 100), 2)) for n in (65, 66, 67, 68)]
    [False, True, True, False]
    """
    step = decimal.step
    if step is None:
        return False
    cut = abs(value) // step * step
    return abs(decimal.value - value) * 2 <= step or decimal.value == (cut if value >= 0 else -cut)


def shortened(value: Fraction, decimal: v.Formula, fewest: int = ENOUGH_DIGITS) -> bool:
    """True if a formula is a decimal: a number rounded or cut to at least ``fewest`` digits."""
    return isinstance(decimal, v.Number) and decimal.digits >= fewest and rounds_to(value, decimal)
