"""Values between the program and its tests: by value, as text that has no code in it.

Subclasses become their built-in type, so that no method of the program runs where it is judged. An object of any
other type is sent as the number or name that stands for it.
"""

import json
import os
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST = 1 << 62
"""Integers from here on are written in base 16, which is read in linear time."""


def encode(value: Any, refer: Callable[[Any], int | str]) -> Any:
    """The value as JSON can hold it; ``refer`` gives the number or name of an object that is none of them.

    ``RecursionError, ValueError``: nested too deep, or within itself.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        value = int.__index__(value)
        return value if abs(value) < LARGEST else {"i": hex(value)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encode(each, refer) for each in list.__iter__(value)]
    if isinstance(value, dict):
        return {"d": [[encode(key, refer), encode(entry, refer)] for key, entry in dict.items(value)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if isinstance(value, Decimal):
        return {"m": str(value)}
    for kind, key, parts, _ in _OF_PARTS:
        if isinstance(value, kind):
            return {key: [encode(each, refer) for each in parts(value)]}
    return {"o": refer(value)}


_OF_PARTS: tuple[tuple[type, str, Callable[[Any], Iterable[Any]], Callable[[list[Any]], Any]], ...] = (
    (tuple, "t", tuple.__iter__, tuple),
    (set, "s", set.__iter__, set),
    (frozenset, "f", frozenset.__iter__, frozenset),
    (complex, "c", lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    (range, "r", lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    (Fraction, "q", lambda value: (value.numerator, value.denominator), lambda parts: Fraction(*parts)),
)
"""Types with the key they are sent under, the parts that are sent, and what makes a value of those."""
_MAKERS = {key: make for _, key, _, make in _OF_PARTS}


def decode(found: Any, referred: Callable[[Any], Any]) -> Any:
    """The value that ``encode`` wrote; ``referred`` gives what stands here for an object with that number or name.

    ``ValueError, TypeError, RecursionError``: it is nothing that ``encode`` writes.
    """
    if isinstance(found, list):
        return [decode(each, referred) for each in found]
    if not isinstance(found, dict):
        return found
    if len(found) != 1:
        raise ValueError("not a value")
    ((key, inner),) = found.items()
    if key == "o":
        return referred(inner)
    if key == "i":
        return int(inner, 16)
    if key == "d":
        return {decode(name, referred): decode(entry, referred) for name, entry in inner}
    if key == "b":
        return bytes.fromhex(inner)
    if key == "m":
        return Decimal(inner)
    make = _MAKERS.get(key)
    if make is None:
        raise ValueError("not a value")
    return make([decode(each, referred) for each in inner])


def line(message: Any) -> bytes:
    """A message as one line of ASCII."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def send(end: int, message: Any) -> None:
    """Write a message to a pipe, all of it."""
    text = line(message)
    while text:
        text = text[os.write(end, text) :]
