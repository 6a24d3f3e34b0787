"""Arguments of the wrong type are errors that name them, with a call that works: not an AttributeError further down."""

import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from dppo.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = {int: numbers.Integral, float: numbers.Real}
_NAMES = {str: "text", int: "a whole number", float: "a number", types.NoneType: "None", Mapping: "a dictionary"}


def typed(example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks arguments against their annotations; of lists and dictionaries only that they are one.

    Args:
        example: a call that works, for the message.

    Raises:
        ConfigError: when the function is called with an argument of another type.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature, hints = inspect.signature(function), typing.get_type_hints(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                check(name, value, hints.get(name, Any), example)
            return function(*args, **kwargs)

        return call

    return decorate


def check_fields(record: Any, example: str) -> None:
    """Check the fields of a dataclass against their annotations, as ``typed`` does with arguments."""
    for name, hint in typing.get_type_hints(type(record)).items():
        check(name, getattr(record, name), hint, example)


def check(name: str, value: Any, hint: Any, example: str) -> None:
    """Check one value against an annotation.

    Raises:
        ConfigError: it is of another type.
    """
    if not _fits(value, hint):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise ConfigError(f"{name}={shown} is {type(value).__name__}, expected {_name(hint)}. Try {example}")


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    kind = origin or hint
    if kind is Callable:
        return callable(value)
    if kind in (Sequence, Iterable, list, tuple):  # arrays and columns are sequences that do not say so; text is none
        needed = "__iter__" if kind is Iterable else "__len__"
        return hasattr(value, needed) and not isinstance(value, (str, bytes, Mapping))
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True  # nothing that can be told here: Any, a literal, a protocol
    return isinstance(value, _NUMBERS.get(kind, kind)) and not (isinstance(value, bool) and kind in _NUMBERS)


def _name(hint: Any) -> str:
    """An annotation in words."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_name, typing.get_args(hint))))
    kind = typing.get_origin(hint) or hint
    if kind in (Sequence, Iterable, list, tuple):
        return "a list"
    return _NAMES.get(kind, "a function" if kind is Callable else getattr(kind, "__name__", str(kind)))
