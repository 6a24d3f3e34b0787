"""Checks of types and ranges: a wrong argument is an error that names it, not an AttributeError further down."""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeGuard, cast

from dppo.errors import ConfigError, did_you_mean, raise_problems

_NUMBERS = {int: numbers.Integral, float: numbers.Real}
_NAMES = {str: "text", int: "a whole number", float: "a number", types.NoneType: "None", Mapping: "a dictionary"}
_hints = functools.cache(typing.get_type_hints)

Allowed = str | Collection[Any]
"""An interval of numbers such as ``"[0, 1)"``, or a tuple of choices."""


class NamedFields:
    """Mixin for dataclasses of settings: an unknown argument is an error that names the field that was meant."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        known, lists = [each.name for each in dataclasses.fields(cast(Any, cls)) if each.init], f"help({cls.__name__})"
        problems = [
            f"{name}={value!r} is no field. {did_you_mean(name, known) or f'{lists} lists all of them.'}".rstrip()
            for name, value in named.items()
            if name not in known
        ]
        raise_problems(cls.__name__, problems)
        return super().__new__(cls)

    def _refuse(self, *problems: str) -> None:
        """Raise an error that lists the problems, if there are any, under the name of the class."""
        raise_problems(type(self).__name__, list(problems))


def is_number(value: Any) -> TypeGuard[int | float]:
    """True if a value of a file or a setting is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_fields(record: Any, example: str, **allowed: Allowed) -> None:
    """Check a dataclass against its annotations and ``allowed`` values; ``example`` is a working call, for errors."""
    for name, hint in _hints(type(record)).items():
        check(name, getattr(record, name), hint, example)
    raise_problems(type(record).__name__, range_problems(record, example, **allowed))


def range_problems(record: Any, example: str, **allowed: Allowed) -> list[str]:
    """One sentence per field of a record that is not in its interval or none of its choices; None is always allowed."""
    problems = []
    for name, of in allowed.items():
        value = getattr(record, name)
        if value is None or (within(value, of) if isinstance(of, str) else value in of):
            continue
        shown = f"{float(value):g}" if isinstance(value, numbers.Real) else repr(value)
        rule = f"in {of}" if isinstance(of, str) else " or ".join(map(repr, of))
        problems.append(f"{name}={shown} must be {rule}. Try {example}.")
    return problems


def check_range(where: str, name: str, value: Any, allowed: Allowed, example: str) -> None:
    """Raise ``ConfigError`` if an argument of ``where`` is not allowed, as for fields."""
    raise_problems(where, range_problems(types.SimpleNamespace(**{name: value}), example, **{name: allowed}))


def within(value: Any, interval: str) -> bool:
    """True for a number in an interval such as ``[0, 1)``; NaN is in none."""
    low, high = map(float, interval[1:-1].split(", "))
    inside = isinstance(value, numbers.Real) and low <= float(value) <= high
    return inside and not (value == low and interval[0] == "(") and not (value == high and interval[-1] == ")")


def check(name: str, value: Any, hint: Any, example: str) -> None:
    """Raise ``ConfigError`` if a value is of another type than its annotation."""
    if wrong := mismatch(name, value, hint, example):
        raise ConfigError(wrong)


def mismatch(name: str, value: Any, hint: Any, example: str) -> str:
    """Sentence about a value of another type than its annotation; empty if it fits."""
    kinds = _kinds(hint)
    if type(value) in kinds or any(_is(value, kind) for kind in kinds):  # the first is the usual case, and fast
        return ""
    words = " or ".join(dict.fromkeys(map(_word, kinds)))
    return f"{name}={value!r:.80} is {type(value).__name__}, expected {words}. Try {example}"


@functools.cache
def _kinds(hint: Any) -> tuple[Any, ...]:
    """Types that an annotation allows, without their parameters."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for each in typing.get_args(hint) for kind in _kinds(each))
    return (typing.get_origin(hint) or hint,)


def _is(value: Any, kind: Any) -> bool:
    if kind is Callable:
        return callable(value)
    if kind in (Sequence, Iterable, list, tuple):  # arrays and columns are not registered as sequences; text is none
        needed = "__iter__" if kind is Iterable else "__len__"
        return hasattr(value, needed) and not isinstance(value, (str, bytes, Mapping))
    if kind is Any or not isinstance(kind, type):
        return True  # Any or a literal: not checked here
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    return isinstance(value, _NUMBERS.get(kind, kind)) and not (isinstance(value, bool) and kind in _NUMBERS)


def _word(kind: Any) -> str:
    if kind in (Sequence, Iterable, list, tuple):
        return "a list"
    return _NAMES.get(kind, "a function" if kind is Callable else getattr(kind, "__name__", str(kind)))
