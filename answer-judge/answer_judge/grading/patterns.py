"""Regular expressions, each with an example that says what it is for; a test runs all examples."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

Rewriting = tuple[re.Pattern[str], str]
"""An expression and what takes the place of what it finds."""


@dataclass(frozen=True, slots=True)
class PatternExample:
    """An expression, a text it is for, and what comes of it."""

    regex: re.Pattern[str]
    text: str
    result: str
    """The first thing found in the text; with a replacement, the text rewritten."""
    replacement: str | None = None


EXAMPLES: list[PatternExample] = []
"""Examples of every expression made here, for ``tests/grading/test_grading_answers.py``."""


def pattern(regex: str, examples: Mapping[str, str] | tuple[str, ...], flags: int = 0) -> re.Pattern[str]:
    """The compiled expression.

    Examples are texts with the first thing that is found in each, or texts that are found whole. ``ValueError``: no
    example.
    """
    if not examples:
        raise ValueError(f"{regex!r} has no example: pattern({regex!r}, {{'a text': 'what is found in it'}})")
    compiled = re.compile(regex, flags)
    found = examples if isinstance(examples, Mapping) else dict(zip(examples, examples, strict=True))
    EXAMPLES.extend(PatternExample(compiled, text, result) for text, result in found.items())
    return compiled


def rewritings(*rows: tuple[str, str, str, str]) -> tuple[Rewriting, ...]:
    """The compiled table: rows of expression, replacement, an example, and the example rewritten by this row alone."""
    table = tuple((re.compile(regex), replacement, text, result) for regex, replacement, text, result in rows)
    EXAMPLES.extend(PatternExample(regex, text, result, replacement) for regex, replacement, text, result in table)
    return tuple((regex, replacement) for regex, replacement, *_ in table)


def rewritten(text: str, table: tuple[Rewriting, ...]) -> str:
    """The text after every row of a table, in order."""
    for regex, replacement in table:
        text = regex.sub(replacement, text)
    return text
