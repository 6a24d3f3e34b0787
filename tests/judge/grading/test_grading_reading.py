"""Reading and comparing answers, against arithmetic and algebra done elsewhere."""

import json
import random
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from answer_judge.errors import DataError
from answer_judge.grading.brackets import Unreadable, brackets, cut
from answer_judge.grading.canonical import canonical
from answer_judge.grading.equality import same_formulas
from answer_judge.grading.formula import parse
from answer_judge.grading.judge import judge
from answer_judge.grading.numbers import read_number
from answer_judge.grading.reading import read
from answer_judge.grading.rules import Grading, with_details
from answer_judge.grading.text import tidy
from answer_judge.grading.units import parse_unit, same_dimension, split_unit
from answer_judge.grading.values import Expression, Number

ROOT = Path(__file__).parents[3]
WHOLE = st.integers(-(10**9), 10**9)
TOP, BOTTOM = st.integers(-999, 999), st.integers(1, 999)


def verdict(answer, gold, **grading):
    return judge({"answer": answer, "gold": gold, "grading": grading})


@given(WHOLE)
def test_an_integer_in_every_form(value):
    forms = [
        f"{value}",
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"{value:,}".replace(",", r",\!"),
        f"{value}.0",
    ]
    forms += [f"{value:,}".replace(",", r"\,"), rf"\frac{{{2 * value}}}{{2}}", f"{2 * value}/2"]
    assert {read_number(tidy(form)).value for form in forms} == {Fraction(value)}


@given(TOP, BOTTOM)
def test_a_fraction_in_every_form(top, bottom):
    value = Fraction(top, bottom)
    forms = [rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", rf"\dfrac{{{-top}}}{{{-bottom}}}"]
    whole, rest = divmod(abs(value), 1)
    if whole and rest:
        sign = "-" if value < 0 else ""
        forms += [rf"{sign}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}", f"{sign}{whole} {rest}"]
    assert {read_number(tidy(form)).value for form in forms} == {value}


@given(st.integers(1, 10**6), st.integers(-20, 20))
def test_a_power_of_ten_in_every_form(digits, power):
    written = f"{digits / 10**5:.5f}"
    value = Fraction(written) * Fraction(10) ** power
    forms = [f"{written}e{power}", rf"{written} \times 10^{{{power}}}", rf"{written}\cdot10^{power}"]
    numbers = [read_number(tidy(form)) for form in forms]
    assert {number.value for number in numbers} == {value}
    assert {number.step for number in numbers} == {Fraction(10) ** (power - 5)}


@given(st.integers(0, 99), st.integers(1, 998))
def test_a_period_is_the_fraction_it_repeats(part, period):
    number = read_number(rf"0.{part:02}\overline{{{period:03}}}")
    assert number.value == Fraction(part, 100) + Fraction(period, 99900)


@pytest.mark.parametrize(
    "text", ["", "-", ".", "1 2", "1,23", "12,34,567", "3 10^2", r"\frac{1}{0}", "1e99999", "x", "٣x"]
)
def test_what_is_no_number(text):
    assert read_number(text) is None


@given(st.integers(2, 40), st.integers(2, 40))
def test_two_readings_of_juxtaposed_numbers_are_the_product_or_none(a, b):
    for form in (f"{a}({b})", f"({a})({b})", rf"{a} \cdot {b}", f"({a}){b}"):
        assert verdict(form, str(a * b)) == "right"
        assert verdict(form, str(a + b)) == ("right" if a + b == a * b else "wrong")
    assert verdict(f"{a} {b}", str(a * b)) == "unparsed"


X, Y, N = sympy.symbols("x y n")


def random_formula(rng, depth=3):
    """A random formula in x and y, with roots and functions."""
    if depth == 0:
        return rng.choice([X, Y, sympy.Integer(rng.randrange(1, 9)), sympy.Rational(rng.randrange(1, 9), 7), sympy.pi])
    one, other = (random_formula(rng, depth - 1) for _ in range(2))
    return rng.choice(
        [one + other, one - 2 * other, one * other, one / (other**2 + 3), sympy.sqrt(one**2 + 1), sympy.exp(one / 9),
         sympy.sin(one), sympy.log(one**2 + 2), one**3]
    )  # fmt: skip


DEAR = {1, 2, 5, 8, 11, 18, 20, 23, 25, 26, 28, 31, 34, 37}
"""Formulas that take most of the time."""
SEEDS = [pytest.param(seed, marks=pytest.mark.slow) if seed in DEAR or seed >= 30 else seed for seed in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_other_forms_of_a_formula_are_right_and_its_neighbours_are_not(seed):
    """sympy writes the formulas and changes their form: neither is done by what is tested."""
    rng = random.Random(seed)
    formula = random_formula(rng)
    gold = sympy.latex(formula, ln_notation=True)
    forms = {sympy.expand(formula), sympy.together(formula), sympy.factor(sympy.expand(formula))}
    for form in forms:
        assert verdict(sympy.latex(form, ln_notation=True), gold) == "right", form
    others = {formula + sympy.Rational(1, 1000), 2 * formula, -formula, formula.subs(X, Y), formula.subs(Y, X)}
    for other in others:
        if sympy.expand(other - formula) != 0:
            assert verdict(sympy.latex(other, ln_notation=True), gold) == "wrong", other


def test_the_comparison_above_can_fail():
    """Compared at one point alone, ``x`` would be any formula that has its value there."""
    one_point = sympy.Rational("1.3717421")
    left, right = Expression("", X), Expression(" ", X**2 - one_point * X + one_point)
    assert left.tree.subs(X, one_point) == right.tree.subs(X, one_point)
    assert not same_formulas(left, right)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (r"\sqrt{x^2}", "x", False),
        (r"\sqrt{x^2}", "|x|", True),
        (r"\ln(x^2)", r"2\ln x", True),
        (r"\lfloor \frac{2n-1}{5} \rfloor", r"\lfloor \frac{2n-2}{5} \rfloor", False),
        (r"\lfloor \sqrt{n-1} \rfloor", r"\lfloor \sqrt{n-2} \rfloor", False),
        (r"\binom{n}{3}", r"\frac{n(n-1)(n-2)}{6}", True),
        (r"\frac{n!}{(n-2)!}", "n^2-n", True),
        (r"7^{300}", r"7^{300}+1", False),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}", True),
        (r"\sqrt{2}+\sqrt{3}", "3.1463", False),
        (r"e^{\pi\sqrt{163}}", "262537412640768744", False),
        ("0x", "0", True),
        ("x/x", "1", True),
    ],
)
def test_formulas_that_are_easily_mistaken(one, other, equal):
    assert verdict(one, other) == verdict(other, one) == ("right" if equal else "wrong")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\sin 3t/5", sympy.sin(3 * sympy.Symbol("t")) / 5),
        (r"\sin(3t)/5", sympy.sin(3 * sympy.Symbol("t")) / 5),
        (r"\cos x e^{-y}", sympy.cos(X) * sympy.exp(-Y)),
        (r"\log 100", sympy.Integer(2)),
        (r"1/2x", X / 2),
        (r"x^10", X**10),
        (r"2^-3", sympy.Rational(1, 8)),
        (r"x^2\frac{1}{2}", X**2 / 2),
        (r"3\frac{1}{2}x", 7 * X / 2),
        (r"3\cdot\frac{5}{2}", sympy.Rational(15, 2)),
        (r"\sqrt 2x", sympy.sqrt(2) * X),
        (r"\sin^2 x", sympy.sin(X) ** 2),
        (r"\sin^{-1} x", sympy.asin(X)),
        (r"\log_2 8", sympy.Integer(3)),
        (r"5!", sympy.Integer(120)),
        (r"2x!", 2 * sympy.factorial(X)),
        (r"|x-1|y", sympy.Abs(X - 1) * Y),
        (r"50\%", sympy.Rational(1, 2)),
        (r"\sin 30^\circ", sympy.Rational(1, 2)),
        (r"i^2", sympy.Integer(-1)),
        (r"{5 \choose 2}", sympy.Integer(10)),
    ],
)
def test_a_formula_is_read_as_people_read_it(text, value):
    found = parse(canonical(tidy(text))[0])
    assert sympy.simplify(found.doit() - value) == 0


@pytest.mark.parametrize(
    "text",
    ["2 3", "x+", "*3", r"\frac{1}{}", "(1", "x^", "n!!", "where b is whole", r"1\frac{9}{5}", r"\foo{1}", r"\int x"],
)
def test_what_is_no_formula(text):
    with pytest.raises(Unreadable):
        read(text)


@given(st.text(alphabet=r"()[]{}\x, ", max_size=30))
def test_brackets_agree_with_a_slow_reader(text):
    """Against taking innermost pairs away until none is left."""
    signs = re.findall(r"\\.|[()\[\]{}]", text)
    rest = "".join({r"\{": "<", r"\}": ">"}.get(sign, sign if len(sign) == 1 else "") for sign in signs)
    before = ""
    while before != rest:
        before = rest
        for pair in ("()", "(]", "[)", "[]", "{}", "<>"):
            rest = rest.replace(pair, "")
    try:
        matched = list(brackets(text)) is not None
    except Unreadable:
        matched = False
    assert matched == (rest == "")


def test_cutting_keeps_brackets_whole():
    assert cut("a,(b,c),{d,e},f", re.compile(",")) == (["a", "(b,c)", "{d,e}", "f"], [","] * 3)
    assert cut(r"\text{a, b}, c", re.compile(",")) == ([r"\text{a, b}", "c"], [","])
    with pytest.raises(Unreadable):
        cut("(" * 100 + ")" * 100, re.compile(","))


@pytest.mark.parametrize(
    ("one", "other", "factor"),
    [
        ("km/h", "m/s", Fraction(5, 18)),
        ("square feet", "in^2", 144),
        ("kg \\cdot m/s^2", "N", 1),
        ("hours", "minutes", 60),
        ("cents", r"\$", Fraction(1, 100)),
        ("liters", "cubic cm", 1000),
        ("mph", "miles per hour", 1),
    ],
)
def test_units_convert(one, other, factor):
    left, right = parse_unit(one), parse_unit(other)
    assert same_dimension(left, right)
    assert float(left.factor / right.factor) == pytest.approx(float(factor), rel=1e-12)


def test_units_that_measure_different_things_do_not():
    names = ["m", "m^2", "s", "kg", "dollars", "degrees", "m/s", "J", "percent", "a.m.", "p.m.", "K"]
    units = [parse_unit(name) for name in names]
    assert all(same_dimension(a, b) == (i == j) for i, a in enumerate(units) for j, b in enumerate(units))
    assert parse_unit("apples").label == "apples"


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"5 \text{ cm}", "5"), (r"\$5", "5"), ("5 cm^2", "5"), (r"5\%", "5"), ("5", None), ("5x", None), ("5 xy", None)],
)
def test_a_unit_is_taken_off(text, value):
    found = split_unit(tidy(text), labels=False)
    assert (found and found[0]) == value


def test_what_a_problem_says_about_its_answer():
    exact = Grading()
    assert with_details(exact, None) is exact and with_details(exact, {"unit": None, "id": 3}) is exact
    told = with_details(exact, {"unit": "km", "tolerance": "1e-1", "is_multiple_answer": True})
    assert told == Grading(several=True, unit="km", absolute=0.1)
    for tolerance in ("a tenth", -1, "inf", "nan", [0.1]):
        with pytest.raises(DataError, match="tolerance="):
            with_details(exact, {"tolerance": tolerance})


def test_a_gold_answer_nobody_can_read_is_compared_as_text():
    gold = "f(x)=ax+b, where b is any whole number"
    assert verdict("f(x) = ax + b, where b is any whole number", gold) == "right"
    assert verdict("f(x)=ax", gold) == "wrong"


def test_the_problem_of_the_example_has_the_answer_in_its_file():
    """x1 (x2 + ... + x101) is a quadratic form: on the sphere its maximum is its largest eigenvalue."""
    row = json.loads((ROOT / "examples" / "maximise.jsonl").read_text(encoding="utf-8"))
    form = np.zeros((101, 101))
    form[0, 1:] = form[1:, 0] = 0.5
    assert np.linalg.eigvalsh(form).max() == pytest.approx(float(row["answer"]), abs=1e-12)
    answers = {"5": "right", r"\frac{\sqrt{100}}{2}": "right", "5.0": "right", r"\frac{\sqrt{101}}{2}": "wrong"}
    answers |= {"10": "wrong", "50": "wrong", r"\frac{5}{\sqrt{2}}": "wrong", r"x_1=\frac{1}{\sqrt{2}}": "wrong"}
    assert {answer: verdict(answer, row["answer"]) for answer in answers} == answers


def test_records_of_numbers():
    assert read("4.50") == Number(Fraction(9, 2), Fraction(1, 100), 3)
    assert read("45") == Number(Fraction(45))
    assert read("0.0012").digits == 2
