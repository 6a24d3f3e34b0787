"""Programs written to be accepted without solving anything, or to harm what runs them: any number, all different.

Each is asked for ``f`` of ``SECRET``, which none of them computes. Their templates are in ``hostile_programs.txt``, by
kind; ``{n}`` is a number that makes copies differ, ``fools`` marks those that ``exec`` and ``assert`` in one process
accept.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

SECRET = "lambda x: (x * x * 7919 + x * 104729) % 65537 + 3"
POINTS = (2, 3, 5, 8, 13)
NOTHING = "def f(x): return {n}"
"""The part of a program that is asked for, and wrong."""


def _read() -> tuple[Mapping[str, tuple[str, ...]], tuple[tuple[str, int], ...]]:
    """Templates by kind, and the kinds and places of those that fool."""
    kinds, fooling = {}, []
    text = Path(__file__).with_name("hostile_programs.txt").read_text(encoding="utf-8")
    for section in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        kind, _, rest = section.partition("\n")
        parts = re.split(r"^---( fools)?\n", rest, flags=re.MULTILINE)[1:]
        kinds[kind] = tuple(part.removesuffix("\n") for part in parts[1::2])
        fooling += [(kind, place) for place, mark in enumerate(parts[::2]) if mark]
    return kinds, tuple(fooling)


KINDS, FOOLING = _read()


def tests() -> str:
    """The tests, in HumanEval's way; they use built-in functions that a program could have replaced."""
    secret = eval(SECRET)
    lines = [f"    assert abs(candidate({x}) - {secret(x)}) < 1e-9" for x in POINTS]
    lines += [f"    assert candidate({x}) == {secret(x)}" for x in POINTS]
    lines += [f"    assert isinstance(candidate({x}), int)" for x in POINTS]
    lines += [f"    assert sorted([candidate({x})])[0] == {secret(x)}" for x in POINTS]
    return "\n".join(["def check(candidate):", *lines, "", "check(f)"])


def program(kind: str, template: int, number: int) -> str:
    """One program; ``number`` is what it returns where it returns at all.

    Every second one hides: in the function that is asked for, where the tests are already running, or in base64.
    """
    text = KINDS[kind][template].replace("{n}", str(number))
    defines = any(sign in text for sign in ("def f", "f = ", "del f"))
    if number % 2 == 0:
        return f"# {number}\n{'' if defines else NOTHING.replace('{n}', str(number))}\n{text}\n"
    if defines:
        hidden = base64.b64encode(text.encode()).decode()
        return f"import base64\nexec(base64.b64decode({hidden!r}))  # {number}\n"
    return f"def f(x):\n    exec({text!r}, {{}})\n    return {number}\n"


def hostile_programs(count: int) -> Iterator[tuple[str, str]]:
    """``count`` different programs as (kind, text): every template once as it stands, then hidden, and so on."""
    places = [(kind, template) for kind, templates in KINDS.items() for template in range(len(templates))]
    for made in range(count):
        kind, template = places[made % len(places)]
        yield kind, program(kind, template, 70000 + 2 * made + made // len(places) % 2)


def fooling() -> Iterator[tuple[str, str]]:
    """The programs that a harness of ``exec`` and ``assert`` accepts."""
    for number, (kind, template) in enumerate(FOOLING):
        yield kind, program(kind, template, 2 * number)


def sample() -> Iterator[tuple[str, str]]:
    """The first programs of every kind, one where they would take all the time, and those that fool."""
    for kind, templates in KINDS.items():
        for template in range(1 if kind in ("time", "output without end") else min(3, len(templates))):
            yield kind, program(kind, template, 2 * template)
    yield from fooling()
