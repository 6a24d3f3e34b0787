"""Decimals that stand for a number they are not: cut or rounded, correctly, at a last digit that says how far."""

from fractions import Fraction

from answer_judge.grading.values import Formula, Number

ENOUGH_DIGITS = 6
"""Significant digits from which a decimal stands for the endless number it is cut from."""
FEWEST_DIGITS = 2
"""Significant digits of a decimal that may follow the exact value in a chain, as in ``\\sqrt{2} = 1.41``."""
DOUBLE_DIGITS = range(15, 18)
"""Significant digits of a printed double: the shortest decimal that is read as the same double again."""
DOUBLE_ERROR = Fraction(1, 2**52)
"""How far a printed double may be from the value it was calculated for, as a share of it."""


def endless(value: Fraction) -> bool:
    """Whether a number has no finite decimal form, so that a decimal can only be near it."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1


def rounds_to(value: Fraction, decimal: Number) -> bool:
    """Whether a decimal is a value rounded, half either way, or cut off, at the decimal's own last digit.

    >>> [rounds_to(Fraction(2, 3), Number(Fraction(n, 100), Fraction(1, 100), 2)) for n in (65, 66, 67, 68)]
    [False, True, True, False]
    """
    step = decimal.step
    if step is None:
        return False
    cut = abs(value) // step * step
    return abs(decimal.value - value) * 2 <= step or decimal.value == (cut if value >= 0 else -cut)


def shortened(value: Fraction, decimal: Formula, fewest: int = ENOUGH_DIGITS) -> bool:
    """Whether a formula is a decimal: a number rounded or cut to at least ``fewest`` digits."""
    return isinstance(decimal, Number) and decimal.digits >= fewest and rounds_to(value, decimal)


def printed(value: Fraction, decimal: Formula) -> bool:
    """Whether a decimal is what a double next to a value prints.

    >>> [printed(Fraction(1, 3), Number(Fraction(10**17 // 3 + n, 10**17), Fraction(1, 10**17), 17)) for n in (3, 30)]
    [True, False]
    """
    if not isinstance(decimal, Number) or decimal.digits not in DOUBLE_DIGITS:
        return False
    return abs(decimal.value - value) <= DOUBLE_ERROR * abs(value)


def is_short(value: Fraction) -> bool:
    """Whether a value with a finite decimal form has clearly fewer digits than a printed double."""
    power = 0
    while value.denominator != 1 and power < DOUBLE_DIGITS.start:
        value, power = value * 10, power + 1
    return value.denominator == 1 and len(str(abs(value.numerator)).rstrip("0")) < DOUBLE_DIGITS.start - 2
