"""How many digits a formula has, estimated before it is evaluated: sympy writes a tower of powers out."""

from collections.abc import Mapping
from math import log10
from typing import Any

from answer_judge.grading.brackets import Unreadable

MOST_DIGITS = 20_000


def check_size(tree: Any, values: Mapping[str, int]) -> None:
    """``Unreadable``: some part of a sympy tree, with numbers in the places of names, has more than ``MOST_DIGITS``."""
    _digits(tree, values)


def _digits(tree: Any, values: Mapping[str, int]) -> float | None:
    """No fewer than the digits of the numerator and the denominator of a constant; None of what stays a formula."""
    if tree.is_Symbol or tree.is_Rational:
        number = values.get(tree.name) if tree.is_Symbol else max(abs(tree.p), tree.q)
        return None if number is None else log10(max(abs(number), 1))
    sizes = [_digits(part, values) for part in tree.args]
    if not sizes or None in sizes:
        return 0.0 if tree.is_Atom and tree.is_algebraic else None
    found = _LARGEST[kind](*sizes) if (kind := type(tree).__name__) in _LARGEST else None
    if found is not None and found > MOST_DIGITS:
        raise Unreadable(f"a number of more than {MOST_DIGITS} digits")
    return found


def _times(digits: float, count: float) -> float:
    """Digits as many times as a number with ``count`` digits says."""
    return digits * 10 ** min(count, 9.0)


_LARGEST = {
    "Add": lambda *sizes: sum(sizes) + 1,
    "Mul": lambda *sizes: sum(sizes),
    "Pow": _times,
    "factorial": lambda size: _times(size, size),
    "binomial": lambda size, chosen: _times(size, min(size, chosen)),
}
"""The digits of a result by those of its arguments, by kind of expression; other functions are not written out."""
