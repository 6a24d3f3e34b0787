"""Whether a number or formula is the gold one, or as near to it as the benchmark allows."""

from fractions import Fraction

from dppo.data.grading.equality import (
    constant,
    is_constant,
    rational,
    same_formulas,
    to_fraction,
    tree,
    values_at_points,
)
from dppo.data.grading.numbers import same_numbers
from dppo.data.grading.options import Grading
from dppo.data.grading.values import Expression, Number

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


def _close(gold: Number | Expression, answer: Number | Expression, grading: Grading) -> bool:
    """Whether an answer is within what the benchmark allows."""
    if not (is_constant(gold) and is_constant(answer)):
        if not (isinstance(gold, Expression) and gold.decimal and grading.relative):
            return False
        pairs = list(values_at_points(tree(gold), tree(answer)))
        return len(pairs) > 2 and all(bool(abs(one - other) <= grading.relative * abs(one)) for one, other in pairs)
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
