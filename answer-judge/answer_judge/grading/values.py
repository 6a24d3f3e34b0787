"""What an answer can be, as records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is written out."""

    value: Fraction
    step: Fraction | None = None
    """Value of one unit in the last digit written, for a decimal or a power of ten; None for integer and fraction."""
    digits: int = 0
    """Significant digits written, where ``step`` is given."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A formula; ``tree`` is its sympy expression, made by the library's LaTeX parser."""

    latex: str
    tree: Any = field(compare=False)
    decimal: bool = False
    """True if a decimal is written in it."""
    words: frozenset[str] = frozenset()
    """The names in it that are words; two formulas with other words are not the same, even where those cancel."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words, in lower case; ``option`` is the letter where they name one of several options."""

    words: str
    option: str = ""


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a base."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Items:
    r"""Several values. ``brackets`` is ``""``, ``"()"``, ``"[]"``, ``"(]"``, ``"[)"``, or ``"{}"`` for ``\{...\}``."""

    brackets: str
    items: tuple["Value", ...]
    joiner: str = ","
    """What stands between the last two of a list: ``,``, ``and`` or ``or``."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple["Value", ...], ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A name and what it equals: ``x = 3``, ``f(x) = 2x``; several members where a chain was written."""

    name: str
    argument: str
    members: tuple["Value", ...]
    plain: "Value | None" = None
    """The name itself as an expression, where it is one."""


@dataclass(frozen=True, slots=True)
class Equation:
    """Two or more sides, none of which is only a name."""

    sides: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Inequality:
    r"""``sides[0] signs[0] sides[1] ...`` with signs ``<``, ``>``, ``\le``, ``\ge``, ``\ne``."""

    sides: tuple["Value", ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Region:
    r"""Sets joined by ``\cup``, ``\cap`` or ``\setminus``, read from left to right; no sign for a single set."""

    parts: tuple["Value", ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: powers of base units and a factor, or only a label where it is not in the table."""

    powers: tuple[tuple[str, int], ...] = ()
    factor: Fraction = Fraction(1)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit."""

    value: "Value"
    unit: Unit


@dataclass(frozen=True, slots=True)
class Either:
    """A text that can be read in more than one way."""

    values: tuple["Value", ...]


Formula = Number | Expression
SETS = Items | Inequality | Region
"""What can be a set of numbers."""
Value = Formula | SETS | Text | Based | Matrix | Named | Equation | Quantity | Either


def readings(value: Value) -> tuple[Value, ...]:
    """Every way in which a text can be read."""
    return value.values if isinstance(value, Either) else (value,)


def as_formula(value: Value) -> Formula | None:
    """A value as a formula, where it is one or can be read as one."""
    return next((part for part in readings(value) if isinstance(part, Formula)), None)


def matched(one: Sequence[T], other: Sequence[T], fits: Callable[[T, T], bool]) -> bool:
    """True if every item of one is matched by a different item of the other, and none is left."""
    left = list(other)
    for item in one:
        match = next((i for i, part in enumerate(left) if fits(item, part)), None)
        if match is None:
            return False
        left.pop(match)
    return not left


def words(value: "Formula") -> frozenset[str]:
    """The words in a formula; a number has none."""
    return value.words if isinstance(value, Expression) else frozenset()


def without_unit(value: Value) -> Value:
    """A value without its unit, where it has one."""
    return value.value if isinstance(value, Quantity) else value
