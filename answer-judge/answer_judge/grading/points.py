"""The points at which formulas with letters are compared, and their values there.

Two different answers to one question do not agree at all of the points; two forms of the same one do, with any algebra
between, and no simplification has to be found. Where one side is real and the other is not (``2 \\ln x`` and
``\\ln x^2`` below 0), a point says nothing.

Where formulas have kinks and steps is solved for: the numbers at which a floor jumps or an absolute value turns. Two
formulas with different steps differ next to one of them, however near or far it is.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise, product
from typing import Any

import sympy

from answer_judge.grading.brackets import Unreadable

POINT_DIGITS = 30
POINT_NEAR = sympy.Rational(1, 10**20)
LEAST_POINTS = 3
_NOISE = sympy.Rational(1, 10**40)
"""Below this a value at a kink may be what is left of a 0 under a root."""
_POINTS = (
    ("1.3717421", "0.7717171", "2.1234577", "0.3183099", "1.6180339"),
    ("2.7182718", "3.3166247", "0.5671433", "1.2020569", "4.6692016"),
    ("-1.4513692", "2.2360679", "-0.8346268", "3.6252560", "-2.5029078"),
    ("0.2614972", "-1.7320508", "1.1319882", "-0.9159655", "0.6243299"),
    ("-0.5960171", "-2.3999632", "-3.1622776", "-1.8393284", "-1.0986122"),
    ("0.8414709", "1.5707963", "2.6651441", "0.4342944", "1.2824271"),
    ("3.3598856", "0.3798845", "1.4513692", "2.0945514", "0.9189385"),
    ("-0.3736558", "-1.7818046", "-2.8077702", "-0.6434105", "-3.2758229"),
    ("-2.0783728", "0.7390851", "1.9021605", "3.0591160", "0.5822405"),
    ("1.1865691", "2.5066282", "0.6617071", "1.7632228", "3.6272931"),
    ("7.3890561", "9.8696044", "11.0901699", "13.8155106", "17.0794684"),
    ("12.182494", "4.4428829", "9.4247780", "3.4641016", "6.9077553"),
    ("5.1327314", "8.2831853", "4.1961524", "6.5397342", "10.0265131"),
)
"""Those behind the first are tried where too few of those say something."""
_FIRST_POINTS = 5
_WHOLE_POINTS, _MOST_FIRST = 30, 4
_CENTRES = (0, 2)
"""Points whose other letters stay where they are while one letter passes its kinks."""
_MOST_SOLVED = 3
"""Letters whose kinks are solved for."""
_USUALLY_WHOLE = frozenset("klmn")
_OF_WHOLE = (sympy.factorial, sympy.binomial)
_STEEP = (sympy.exp, sympy.sinh, sympy.cosh, sympy.tanh)
_FARTHEST = 1000.0
"""Digits from 1 beyond which a constant is refused, and a term with letters is not seen."""
_LOG_2 = math.log10(2)
_MOST_KINKS = 12
"""Numbers of two formulas that are looked at from both sides."""


STEPS = (sympy.floor, sympy.ceiling)
KINKS = (*STEPS, sympy.Abs, sympy.Max, sympy.Min)
_LEVELS = range(-2, 4)
"""Whole numbers that the argument of a floor passes."""
_NEXT_TO = sympy.Rational(1, 10**9)
"""How near to a kink both its sides are looked at, as a share of the distance to the next one."""
_BEYOND = sympy.Rational("0.9159655")
_MOST_TURNS = 16
_HIGHEST_DEGREE = 4


def more_digits(one: Any, other: Any) -> int:
    """Digits by which two formulas are compared more exactly, so that no number in them is too small to be seen."""
    reach = max(_reach(one), _reach(other))
    if reach > _FARTHEST and not (one.free_symbols or other.free_symbols):
        raise Unreadable("a number that is too large or too small")
    return 2 * math.ceil(min(reach, _FARTHEST))


def _reach(formula: Any) -> float:
    """How many digits the numbers in a formula, and its constant powers, are away from 1."""
    if formula.is_Rational:
        return _LOG_2 * (max(abs(formula.p), formula.q).bit_length() - 1)
    parts = [0.0, *map(_reach, formula.args)]
    inner = max(parts) if formula.is_Add else sum(parts)
    if formula.is_Pow and formula.exp.is_number:
        far = formula.base.is_number and not formula.base.is_Rational
        far_from_one = _at_most(sympy.log(abs(formula.base.evalf(5)))) if far else 0.0
        return _at_most(formula.exp) * max(inner, far_from_one)
    if isinstance(formula, _STEEP) or formula.is_Pow:
        at_one = formula.args[-1].xreplace({letter: sympy.Integer(1) for letter in formula.free_symbols})
        return max(inner, _at_most(at_one))
    return inner


def _at_most(number: Any) -> float:
    """The size of a number, where it is no larger than what is looked at."""
    value = abs(number.evalf(5))
    return float(value) if value.is_comparable and value < 10 * _FARTHEST else 10.0 * _FARTHEST


def values_at_points(one: Any, other: Any, digits: int = POINT_DIGITS) -> Iterator[tuple[Any, Any]]:
    """The values of two formulas at the points where both have one, as pairs.

    A point at which a number below 0 comes under a root or a logarithm says nothing, unless there are too few others:
    ``\\sqrt{x}\\sqrt{y}`` and ``\\sqrt{xy}`` are the same wherever both are meant.
    """
    names = sorted(one.free_symbols | other.free_symbols, key=str)
    if len(names) > 25:
        raise Unreadable("too many letters")
    if any(power.base == 0 and power.exp.free_symbols for power in one.atoms(sympy.Pow) | other.atoms(sympy.Pow)):
        raise Unreadable("a power of 0")
    positive = _not_below_zero(one) | _not_below_zero(other)
    apart = _signs_are_told_apart(one, other)
    said, vanishing, put_off = 0, 0, []
    for needed, at in _points(one, other, names):
        if not needed and said >= LEAST_POINTS:
            continue
        if any((value := part.evalf(15, subs=at)).is_real and value < 0 for part in positive):
            put_off.append(at)
        elif pair := _values_at(at, one, other, apart, digits):
            nothing = not (one.is_zero or other.is_zero or any(pair))  # as where n is too small for a binomial
            said, vanishing = said + (not nothing), vanishing + nothing
            yield pair
    if said < LEAST_POINTS:
        for at in put_off:
            if pair := _values_at(at, one, other, apart, digits):
                said += 1
                yield pair
        if said < LEAST_POINTS and not (said and said + vanishing >= LEAST_POINTS):
            raise Unreadable("no value at enough points")


def _points(one: Any, other: Any, names: list[Any]) -> Iterator[tuple[bool, dict[Any, Any]]]:
    """The points, each with whether it is tried even where enough others have said something.

    Letters are whole where both formulas say so: a factorial, a binomial coefficient or a sign ``(-1)^n`` of letters.
    Anywhere else floors and ceilings are looked at between whole numbers too. A formula with kinks is looked at near
    each of them and of its numbers and far out, since two formulas may agree on one side of a kink.
    """
    whole = [_whole_letters(formula) for formula in (one, other)]
    steps = one.has(*STEPS) or other.has(*STEPS)
    if any(whole) or steps:
        for point, first in product(range(_WHOLE_POINTS), range(min(len(names), _MOST_FIRST))):
            yield True, {name: _whole_coordinate(point, (i - first) % len(names)) for i, name in enumerate(names)}
    free = [name for name in names if name not in whole[0] & whole[1]]
    if not free:
        return

    def kept(point: int, at: dict[Any, Any]) -> dict[Any, Any]:
        """A point, its letters that are whole at whole values."""
        return at | {name: _whole_coordinate(point, i) for i, name in enumerate(names) if name not in free}

    if has_kinks(one) or has_kinks(other):
        for point, at in enumerate(_around_numbers(one, other, names)):
            yield True, kept(point, at)
        for point in _CENTRES:
            centre = kept(point, {name: _coordinate(point, i) for i, name in enumerate(names)})
            yield from ((True, at) for at in around_kinks((one, other), centre, free[:_MOST_SOLVED]))
    for point in range(len(_POINTS)):
        yield point < _FIRST_POINTS, kept(point, {name: _coordinate(point, i) for i, name in enumerate(names)})


def _around_numbers(one: Any, other: Any, names: list[Any]) -> Iterator[dict[Any, Any]]:
    """Points next to the numbers in two formulas, on both sides of 0, and beyond all of them."""
    numbers = sorted({abs(number) for formula in (one, other) for number in formula.atoms(sympy.Rational)})[
        -_MOST_KINKS:
    ]
    far = 3 * (1 + sum(numbers))
    for centre in (*numbers, far):
        for sign, row in ((1, _POINTS[3]), (-1, _POINTS[4])):
            yield {
                name: sign * centre + sympy.Rational(row[i % len(row)]) * (1 + i // len(row))
                for i, name in enumerate(names)
            }


def _values_at(at: Mapping[Any, Any], one: Any, other: Any, told_apart: bool, digits: int) -> tuple[Any, Any] | None:
    """The values at one point, unless one of them has none, or only one is real and that tells nothing apart."""
    left, right = (settled(formula, at).evalf(digits, subs=at) for formula in (one, other))
    if not (is_finite(left) and is_finite(right)):
        return None
    if left != right and max(abs(left), abs(right)) < _NOISE and (has_kinks(one) or has_kinks(other)):
        return None
    if _is_real(left) != _is_real(right) and not (told_apart or one.has(sympy.I) or other.has(sympy.I)):
        return None
    return left, right


def _signs_are_told_apart(one: Any, other: Any) -> bool:
    """Whether a letter is whole in one formula alone, as in ``(-1)^x x``; one such as n counts as whole anyway."""
    unlike = _whole_letters(one) ^ _whole_letters(other)
    return any(str(letter) not in _USUALLY_WHOLE for letter in unlike)


def _not_below_zero(formula: Any) -> set[Any]:
    """What stands under roots and in logarithms, where it has letters in it."""
    roots = {power.base for power in formula.atoms(sympy.Pow) if not power.exp.is_integer}
    return {part for part in roots | {log.args[0] for log in formula.atoms(sympy.log)} if part.free_symbols}


def _coordinate(point: int, i: int) -> Any:
    """The value of the i-th letter at a point; letters beyond the fifth get other values."""
    row = _POINTS[point]
    lap, place = divmod(i, len(row))
    return sympy.Rational(row[place]) + sympy.Rational(lap * 37, 61)


def _whole_coordinate(point: int, i: int) -> Any:
    """The value of the i-th letter at a whole point: the first takes every value from 2 on, the others stay small."""
    return sympy.Integer(2 + point if i == 0 else 1 + point * (2 * i + 1) % (3 + 2 * i))


def _whole_letters(formula: Any) -> set[Any]:
    """The letters in a factorial, a binomial or a power of a negative number; what stands in a floor may be any."""
    counts = [part for part in formula.atoms(*_OF_WHOLE) if part.free_symbols]
    counts += [power.exp for power in formula.atoms(sympy.Pow) if power.base.is_negative and power.exp.free_symbols]
    bare = (part.xreplace({step: sympy.Integer(1) for step in part.atoms(*STEPS)}) for part in counts)
    return set().union(*(part.free_symbols for part in bare))


def is_finite(value: Any) -> bool:
    return bool(value.is_number and value.is_finite and value.is_complex)


def _is_real(value: Any) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= POINT_NEAR * max(abs(real), POINT_NEAR))


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
