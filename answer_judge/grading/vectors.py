r"""Vectors written with unit vectors, ``\mathbf{i} - 2\mathbf{j}``, as tuples of their components."""

from fractions import Fraction
from typing import Any

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.patterns import pattern

_UNIT = pattern(
    r"\\(?:mathbf|boldsymbol|bm|hat|widehat|vec|overrightarrow) ?\{? ?(?:\\(?:mathbf|boldsymbol|bm|hat|vec) ?\{? ?)?"
    r"\\?(?P<letter>[ijk])(?:math)?(?![A-Za-z]) ?\}{0,2}",
    {r"2\mathbf{i}": r"\mathbf{i}", r"\hat{\imath}": r"\hat{\imath}", r"\vec j": r"\vec j"},
)
_BOLD = pattern(
    r"\\(?:underline|bf) ?\{ ?([ijk]) ?\}|\{ ?\\bf ([ijk]) ?\}",
    {r"2\underline{i}": r"\underline{i}", r"\bf{j}": r"\bf{j}", r"{\bf k}": r"{\bf k}"},
)
_AXES = tuple(sympy.Symbol(f"hatOF{letter}") for letter in "ijk")


def with_hats(text: str) -> str | None:
    r"""A text whose unit vectors are all written ``\hat{i}``; None where it has none."""
    written = _UNIT.sub(r" \\hat{\g<letter>} ", _BOLD.sub(r"\\mathbf{\1\2}", text))
    return None if written == text else written


def as_tuples(value: v.Value) -> list[v.Value]:
    """The tuples a sum of unit vectors can stand for: in space, and in the plane where it has no third component."""
    if isinstance(value, v.Named) and len(value.members) == 1:
        return [v.Named(value.name, value.argument, (found,)) for found in as_tuples(value.members[0])]
    if not isinstance(value, v.Expression):
        return []
    formula = value.tree.expand()
    parts = [formula.coeff(axis) for axis in _AXES]
    rest = formula - sum(part * axis for part, axis in zip(parts, _AXES, strict=True))
    if rest.expand() != 0 or any(part.has(*_AXES) for part in parts):
        return []
    items = tuple(map(_component, parts))
    return [v.Items("()", items), *([v.Items("()", items[:2])] if parts[2] == 0 else [])]


def _component(part: Any) -> v.Value:
    if part.is_Rational:
        return v.Number(Fraction(int(part.p), int(part.q)))
    return v.Expression(f"component {part}", part)
