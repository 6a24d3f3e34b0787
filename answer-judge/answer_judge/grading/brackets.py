"""Brackets of a text: their depth, those around all of it, and cutting outside of them. Linear in the text."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from answer_judge.grading.patterns import pattern

DEEPEST = 40
"""Brackets within brackets; no answer needs more, and recursion stays far from Python's own limit."""


class Unreadable(ValueError):
    """A text that is not mathematics we can read. Every reader and comparison may raise it; ``judge`` catches it."""


T = TypeVar("T")


def readable(read: Callable[..., T], *given: Any) -> T | None:
    """What a reader or a comparison gives; None where it finds a text unreadable."""
    try:
        return read(*given)
    except Unreadable:
        return None


_BRACKET = pattern(
    r"\\[{}]|\\text\{[^{}]*\}|[()\[\]{}]|\\.",
    {r"x\{": r"\{", r"\text{a, b}": r"\text{a, b}", r"\alpha": r"\a"},
    re.DOTALL,
)
BRACE = pattern(r"\\.|[{}]", {r"x\{": r"\{", "x}": "}"}, re.DOTALL)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}, {")", "]", "}", r"\}"}


def brackets(text: str) -> Iterator[tuple[int, int, str]]:
    r"""Brackets as (position, depth outside, the bracket); ``\text{...}`` is a pair, ``(`` may close with ``]``."""
    stack: list[str] = []
    for found in _BRACKET.finditer(text):
        bracket = found[0]
        if len(bracket) > 2:  # words count as one pair of brackets
            yield found.start(), len(stack), "{"
            yield found.end() - 1, len(stack), "}"
        elif bracket in _OPEN:
            yield found.start(), len(stack), bracket
            stack.append(bracket)
            if len(stack) > DEEPEST:
                raise Unreadable("too deep")
        elif bracket in _CLOSE:
            if not stack or (_OPEN[stack[-1]] != bracket and not (stack[-1] in "([" and bracket in ")]")):
                raise Unreadable("brackets do not match")
            stack.pop()
            yield found.start(), len(stack), bracket
    if stack:
        raise Unreadable("brackets do not match")


def outer_brackets(text: str) -> tuple[str, str] | None:
    """The brackets around a whole text, or None."""
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    ending = r"\}" if text.endswith(r"\}") else text[-1:]
    if opening not in ("(", "[", "{", r"\{") or ending not in (")", "]", "}", r"\}") or len(text) < 2:
        return None
    outer = [position for position, depth, _ in brackets(text) if depth == 0]
    return (opening, ending) if outer == [0, len(text) - len(ending)] else None


def cut(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The pieces of a text between separators outside all brackets, and the separators."""
    spans, start = [], 0
    for position, depth, bracket in brackets(text):
        if depth == 0 and bracket in _OPEN:
            spans.append((start, position))
        elif depth == 0:
            start = position + len(bracket)
    spans.append((start, len(text)))
    pieces, found, last = [], [], 0
    for low, high in spans:
        for match in separator.finditer(text, low, high):
            pieces.append(text[last : match.start()].strip())
            found.append(match[0].strip())
            last = match.end()
    return [*pieces, text[last:].strip()], found
