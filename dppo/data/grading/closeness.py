"""Whether a number or formula is the gold one, or as near to it as the benchmark allows."""

from fractions import Fraction
from typing import Any

import sympy

from dppo.data.grading.equality import (
    LEAST_POINTS,
    constant,
    is_constant,
    rational,
    same_formulas,
    to_fraction,
    tree,
    values_at_points,
)
from dppo.data.grading.numbers import same_numbers
from dppo.data.grading.text import Unreadable
from dppo.data.grading.values import Expression, Number
from dppo.data.rules import Grading

LARGEST_ROUNDING = Fraction(1, 20)
"""Half a unit in the last digit may be at most this share of a gold value for it to count as rounded."""


def same_values(gold: Number | Expression, answer: Number | Expression, grading: Grading) -> bool:
    """Numbers and formulas: equal, or near enough where the benchmark says so."""
    if isinstance(gold, Number) and isinstance(answer, Number):
        equal = same_numbers(gold, answer)
    else:
        equal = same_formulas(gold, answer)
    return equal or (
        (grading.absolute or grading.relative or grading.rounded_from) != 0 and _close(gold, answer, grading)
    )


def _pairs(gold: Any, answer: Any) -> list[tuple[Any, Any]]:
    """What must be near each other in two formulas: the coefficients of polynomials, else the values at points.

    A large term would hide a wrong small one if values alone were compared: ``125 - 1.5 P`` for ``125 - 1.25 P``.

    Raises:
        Unreadable: there are not enough points where both have a value.
    """
    letters = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if gold.is_polynomial(*letters) and answer.is_polynomial(*letters):
        one, other = (sympy.Poly(formula, *letters) for formula in (gold, answer))
        return [(one.coeff_monomial(p), other.coeff_monomial(p)) for p in {*one.monoms(), *other.monoms()}]
    found = list(values_at_points(gold, answer))
    if len(found) < LEAST_POINTS:
        raise Unreadable("no value at enough points")
    return found


def _close(gold: Number | Expression, answer: Number | Expression, grading: Grading) -> bool:
    """Whether an answer is within what the benchmark allows."""
    if not (is_constant(gold) and is_constant(answer)):
        if not (isinstance(gold, Expression) and gold.decimal and grading.relative):
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
    if not (grading.rounded_from and isinstance(gold, Number) and gold.step and gold.digits >= grading.rounded_from):
        return False
    return gap <= gold.step / 2 <= LARGEST_ROUNDING * size
