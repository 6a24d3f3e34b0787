"""Reading and comparing answers, against arithmetic and algebra done elsewhere."""

import random

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from answer_judge.errors import DataError
from answer_judge.grading.judge import judge
from answer_judge.grading.rules import DETAILS, Grading, with_details


def verdict(answer, gold, **grading):
    return judge({"answer": answer, "gold": gold, "grading": grading})


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


@pytest.mark.parametrize("seed", (0, 3, 4, 6, 7, 9, 10, 12, 13, 14))
def test_other_forms_of_a_formula_are_right_and_its_neighbours_are_not(seed):
    """sympy writes the formulas and changes their form: neither is done by what is tested."""
    rng = random.Random(seed)
    formula = random_formula(rng)
    gold = sympy.latex(formula, ln_notation=True)
    for form in (sympy.expand(formula), sympy.together(formula), sympy.factor(sympy.expand(formula))):
        assert verdict(sympy.latex(form, ln_notation=True), gold) == "right", form
    shifted = formula + sympy.Rational(1, 1000)
    for other in (shifted, 2 * formula, -formula, formula.subs(X, Y), formula.subs(Y, X)):
        if sympy.expand(other - formula) != 0:
            assert verdict(sympy.latex(other, ln_notation=True), gold) == "wrong", other


def test_what_a_problem_says_about_its_answer():
    exact = Grading()
    assert with_details(exact, None) is exact and with_details(exact, {"unit": None, "id": 3}) is exact
    told = with_details(exact, {"unit": "km", "tolerance": "1e-1", "is_multiple_answer": True})
    assert told == Grading(several=True, unit="km", absolute=0.1)
    for tolerance in ("a tenth", -1, "inf", "nan", [0.1], "1e-2,1e-1", "1%"):
        with pytest.raises(DataError, match="tolerance="):
            with_details(exact, {"tolerance": tolerance})
    for nothing in (None, "", " ", float("nan")):
        assert with_details(exact, dict.fromkeys(DETAILS, nothing)) == exact
    for several in ("False", "false", "0", 0, 0.0, False, "True", "1", 1, 1.0):
        assert with_details(exact, {"is_multiple_answer": several}).several is (several in ("True", "1", 1))
    with refused(DataError, "is_multiple_answer='two'"):
        with_details(exact, {"is_multiple_answer": "two"})
