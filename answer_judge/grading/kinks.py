"""Where formulas have kinks and steps, solved for: the numbers at which a floor jumps or an absolute value turns.

Two formulas with different steps differ next to one of them, however near or far it is.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import Any

import sympy

STEPS = (sympy.floor, sympy.ceiling)
KINKS = (*STEPS, sympy.Abs, sympy.Max, sympy.Min)
_LEVELS = range(-2, 4)
"""Whole numbers that the argument of a floor passes."""
_NEXT_TO = sympy.Rational(1, 10**9)
"""How near to a kink both its sides are looked at, as a share of the distance to the next one."""
_BEYOND = sympy.Rational("0.9159655")
_MOST_TURNS = 16
_HIGHEST_DEGREE = 4


def has_kinks(formula: Any) -> bool:
    """Whether a formula may be another one beyond some number: absolute values, floors, roots of squares."""
    return formula.has(*KINKS) or any(True for _ in _squares(formula))


def _squares(formula: Any) -> Iterator[Any]:
    """The bases of even powers under roots."""
    for power in formula.atoms(sympy.Pow):
        if not power.exp.is_integer and power.base.free_symbols:
            yield from (inner.base for inner in power.base.atoms(sympy.Pow) if inner.exp.is_even)


def settled(formula: Any, at: Mapping[Any, Any]) -> Any:
    """A formula with its floors and ceilings at one point in their places; sympy has none for one within another."""
    steps = {part: part.xreplace(at) for part in formula.atoms(*STEPS)}
    return formula.xreplace(steps) if steps else formula


def around_kinks(formulas: tuple[Any, Any], centres: Mapping[Any, Any], letters: list[Any]) -> Iterator[dict[Any, Any]]:
    """Points at, next to and between the kinks of formulas in each of the letters, the others at their centres."""
    turns = _turns(formulas)
    at_steps = (0,) if any(formula.has(*STEPS) for formula in formulas) else ()
    for letter in letters:
        others = {name: value for name, value in centres.items() if name != letter}
        found = sorted({root for turn, steps in turns for root in _roots(turn.xreplace(others), letter, steps)})
        if found:
            yield from ({**centres, letter: value} for value in _beside(found, at_steps))


def _beside(kinks: list[Any], at: tuple[int, ...]) -> list[Any]:
    """The kinks themselves, where a value there is its own, both sides of each, and the middle between neighbours."""
    near = min((high - low for low, high in pairwise(kinks)), default=sympy.Integer(1)) * _NEXT_TO
    sides = [kink + side for kink in kinks for side in (-near, *at, near)]
    return [kinks[0] - _BEYOND, *sides, *((low + high) / 2 for low, high in pairwise(kinks)), kinks[-1] + _BEYOND]


def _turns(formulas: tuple[Any, Any]) -> list[tuple[Any, bool]]:
    """What is whole (True) or 0 (False) at a kink, without the kinks within it."""
    turns: dict[tuple[Any, bool], None] = {}
    for formula in formulas:
        for part in sorted(formula.atoms(*KINKS), key=str):
            if isinstance(part, STEPS):
                found = [(part.args[0], True)]
            elif isinstance(part, sympy.Abs):
                found = [(part.args[0], False)]
            else:
                found = [(one - other, False) for one, other in combinations(part.args, 2)]
            turns |= dict.fromkeys((straight, steps) for turn, steps in found for straight in _straight(turn))
        turns |= dict.fromkeys((base, False) for base in _squares(formula))
    return list(turns)[:_MOST_TURNS]


def _straight(turn: Any) -> list[Any]:
    """A formula without floors, and with each sign that its absolute values together may have."""
    plain = turn
    while plain.has(*STEPS):
        plain = plain.xreplace({part: part.args[0] for part in plain.atoms(*STEPS)})
    sizes = plain.atoms(sympy.Abs)
    if not sizes:
        return [plain]
    return [plain.xreplace({part: sign * part.args[0] for part in sizes}) for sign in (1, -1)]


def _roots(turn: Any, letter: Any, steps: bool) -> Iterator[Any]:
    """The values of a letter at which a polynomial in it, or a root of one, is whole and near 0, or is 0."""
    is_root = turn.is_Pow and turn.exp.is_Rational and turn.exp.p == 1
    inner, power = (turn.base, turn.exp.q) if is_root else (turn, 1)
    # A polynomial with pi as a generator would be compiled, which a worker refuses.
    inner = inner.xreplace({number: _as_rational(number) for number in inner.atoms(sympy.NumberSymbol)})
    if letter not in inner.free_symbols or not inner.is_polynomial(letter):
        return
    if sympy.degree(inner, letter) > _HIGHEST_DEGREE:
        return
    for level in _LEVELS if steps else (0,):
        polynomial = sympy.Poly(inner - level**power, letter)
        if polynomial.degree() == 1:
            slope, start = polynomial.all_coeffs()
            yield _as_rational(-start / slope)
        else:
            yield from (_as_rational(root) for root in polynomial.nroots(maxsteps=100) if root.is_real)


def _as_rational(value: Any) -> Any:
    return value if value.is_Rational else sympy.Rational(str(value.evalf(25)))
