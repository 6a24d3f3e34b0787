r"""Values with a letter that stands for every whole number: ``\frac{\pi}{2} + k\pi, k \in \mathbb{Z}``."""

from collections.abc import Callable
from dataclasses import replace

import sympy

import answer_judge.grading.values as v
from answer_judge.grading.patterns import pattern

_LETTER = (
    r"(?P<letter>[A-Za-z]) ?(?:\\in ?\\mathbb\{Z\}"
    r"|(?:\\text\{ ?)?(?:is |being )?(?:an? |any )?integer ?\}?|\\in ?Z(?![A-Za-z]))"
)
_DECLARED = pattern(
    rf" ?[,;]? ?(?P<open>\()? ?(?:\\text\{{ ?,? ?(?:where|for|with|and)(?: any| all| some)? ?\}}"
    rf"|(?:where|for|with) )? ?{_LETTER} ?(?P<close>\))?$",
    {
        r"k\pi, k \in \mathbb{Z}": r", k \in \mathbb{Z}",
        r"x \text{ where } k\in \mathbb{Z}": r" \text{ where } k\in \mathbb{Z}",
    },
)
_IN_BRACES = pattern(
    rf"\\\{{(?P<value>[^|]*)\|{_LETTER} ?\\\}}".replace(r"\|{", r"\| ?{").replace(r"\|(", r"\| ?("),
    (r"\{k\pi | k \in \mathbb{Z}\}",),
)
_OPEN_SET = pattern(r"\\\{ ?[A-Za-z] ?[|:] ?(?P<value>.*)\\\}", (r"\{x | x=k\pi, k \in \mathbb{Z}\}",))
USUAL = frozenset("klmn")
"""Letters that stand for whole numbers where one side says so and the other does not."""
WHOLE = sympy.Symbol("WHOLE")


def declared(text: str) -> tuple[str, str] | None:
    """A tidy text without "k is whole" at its end, and the letter; None where it does not say so."""
    if found := _IN_BRACES.fullmatch(text):
        return found["value"].strip(), found["letter"]
    if inside := _OPEN_SET.fullmatch(text):
        text = inside["value"].strip()
    found = _DECLARED.search(text)
    if not found or not text[: found.start()].strip() or (found["open"] is None) != (found["close"] is None):
        return None
    return text[: found.start()].strip(" ,;"), found["letter"]


def _as_family(value: v.Value, *, is_gold: bool) -> v.Value | None:
    """A value with ``WHOLE`` for its whole letter; None without one. A gold answer declares it, or has pi in it."""
    formulas = v.formulas(value)
    names = {value.letter} if isinstance(value, v.Family) else USUAL
    if not isinstance(value, v.Family) and is_gold and not all(part.tree.has(sympy.pi) for part in formulas):
        return None  # k^2 for whole k is no n^2
    chosen = {symbol for part in formulas for symbol in part.tree.free_symbols if symbol.name in names}
    if len(chosen) != 1:
        return None
    (letter,) = chosen

    def renamed(part: v.Expression) -> v.Expression:
        if letter not in part.tree.free_symbols:
            return part
        return replace(part, latex=f"{part.latex} in whole {letter.name}", tree=part.tree.xreplace({letter: WHOLE}))

    return v.mapped(value.value if isinstance(value, v.Family) else value, renamed)


def _same_steps(one: v.Value, other: v.Value) -> bool:
    """Whether two formulas take the same values over all whole numbers: same distance, and one starts on the other."""
    if not (isinstance(one, v.Expression) and isinstance(other, v.Expression)):
        return False
    slopes = [part.tree.diff(WHOLE) for part in (one, other)]
    starts = [part.tree.subs(WHOLE, 0) for part in (one, other)]
    if any(slope == 0 or slope.free_symbols for slope in slopes) or any(start.free_symbols for start in starts):
        return False
    turns, ratio = ((starts[1] - starts[0]) / slopes[0]).evalf(40), (slopes[1] / slopes[0]).evalf(40)
    if not (ratio.is_real and turns.is_real):
        return False
    return bool(max(abs(abs(ratio) - 1), abs(turns - sympy.Integer(round(turns)))) < sympy.Rational(1, 10**25))


def same_families(gold: v.Value, answer: v.Value, same: Callable[[v.Value, v.Value], bool]) -> bool:
    """Whether two values are the same for all whole numbers together, under any letter."""
    if not (isinstance(gold, v.Family) and isinstance(answer, v.Family)):
        values = [part.value if isinstance(part, v.Family) else part for part in (gold, answer)]
        if same(values[0], values[1]):
            return True  # under the same letter, said to be whole or not
    one, other = _as_family(gold, is_gold=True), _as_family(answer, is_gold=False)
    if one is None or other is None:
        return False
    lists = [_alone(part) for part in (one, other)]
    if any(items is None for items in lists):
        return same(one, other)
    return v.matched(lists[0] or (), lists[1] or (), lambda item, part: _same_steps(item, part) or same(item, part))


def _alone(value: v.Value) -> tuple[v.Value, ...] | None:
    """The formulas a value lists, or the one it is; None where it is a tuple, an interval or the like."""
    if isinstance(value, v.Named):
        value = value.members[-1]
    if isinstance(value, v.Items) and value.brackets in ("", "{}"):
        parts = [_alone(item) for item in value.items]
        return tuple(part for some in parts for part in some or ()) if all(parts) else None
    return (value,) if isinstance(value, v.Formula) else None
