"""A text that names several answers earns nothing, and a letter is a letter: properties of golds of every kind."""

import random
import string
from itertools import permutations

import mpmath
import pytest

from answer_judge.grading import points
from answer_judge.grading.judge import judge
from answer_judge.grading.options import labelled, named_options
from answer_judge.grading.text import tidy

GOLDS = {
    "option": ["A", r"\text{(B)}", "(C)", "D", r"\mathrm{E}"],
    "integer": ["7", "-12", "345"],
    "fraction": [r"\frac{2}{3}", r"-\frac{5}{7}"],
    "decimal": ["0.37", "12.5"],
    "root": [r"\sqrt{5}", r"2\sqrt{3}+1"],
    "formula": ["x^2+1", "3y-2", r"\sin x"],
    "tuple": ["(1,2)", "(4,-3)"],
    "interval": ["[0,5)", r"(2,\infty)"],
    "set": [r"\{1,2\}", r"\{3\}"],
    "words": [r"\text{east}", r"\text{odd}"],
    "time": ["7:45", "11:10"],
    "unit": [r"5\text{ cm}", r"8\text{ kg}"],
    "percent": [r"35\%", r"80\%"],
    "matrix": [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}3\\4\end{pmatrix}"],
    "equation": ["y=2x+1", "x+y=5"],
    "base": ["63_8", "101_2"],
}
JOINTS = (
    " ", ", ", "; ", " or ", " and ", r" \text{ or } ", r" \text{ and } ", r" \quad ", " = ", r" \approx ", " / ",
    r" \\ ", r"\text{ alternatively }", r" \lor ", r" \cup ", " | ", r" \to ", r" \ne ",
    r"\text{, maybe }", r" \text{ not } ",
)  # fmt: skip


def right(answer, gold):
    return judge({"answer": answer, "gold": gold}) == "right"


def same_thing(one, other):
    return right(one, other) or right(other, one)


@pytest.mark.parametrize("kind", GOLDS)
def test_a_text_that_names_several_answers_is_never_right(kind):
    accepted = []
    for gold, other in permutations(GOLDS[kind], 2):
        for joint in () if same_thing(gold, other) else JOINTS:
            texts = (f"{gold}{joint}{other}", f"{other}{joint}{gold}")
            accepted += [(text, gold) for text in texts if right(text, gold) and not is_one_answer(text, kind, joint)]
    assert accepted == []


def is_one_answer(text, kind, joint):
    """The letter of an option before its text, and a chain or union that has one value."""
    label = labelled(tidy(text))
    if label is not None and not named_options(label[1]):
        return True
    return joint == r" \cup " and kind in ("interval", "set")  # of which one may hold the other


@pytest.mark.parametrize("form", ["({})", r"\text{{{}}}", "{}", r"\mathbf{{({})}}"])
@pytest.mark.parametrize("joint", [" ", "", ", ", " and "])
def test_all_options_together_are_no_option(form, joint):
    listed = joint.join(form.format(each) for each in "ABCDE")
    for letter in "ABCDE":
        assert not right(listed, letter) and not right(f"{listed} 3", letter) and not right(f"{listed} 3", "3")
        assert right(form.format(letter), letter)


RELATIONS = [
    # answer, gold, verdict; @ is the letter
    (r"-2\le @<3", "(-2,3)", False),
    (r"\{@ \mid @>1\}", r"(1,\infty)", True),
    (r"@ \ge 4", r"[4,\infty)", True),
    (r"@ \in (1,2]", "1<@ \\le 2", True),
    ("@=5", "5", True),
    ("@=5", "6", False),
]
FORMULAS = [
    ("2@+1", "1+@+@", True),
    ("2@+1", "2@-1", False),
    (r"\sin^2 @", r"1-\cos^2 @", True),
    ("3@", r"\{3@\}", True),
    (r"\sqrt{@^2}", "@", False),
]


@pytest.mark.parametrize(("pairs", "but"), [(RELATIONS, ""), (FORMULAS, "ei")], ids=["relation", "formula"])
def test_any_letter_may_stand_in_a_relation_and_any_but_e_and_i_in_a_formula(pairs, but):
    for answer, gold, verdict in pairs:
        letters = set(string.ascii_lowercase) - set(but)
        found = {right(answer.replace("@", letter), gold.replace("@", letter)) for letter in letters}
        assert found == {verdict}, answer


VALUES = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
    "tanh": mpmath.tanh, "log": mpmath.log10, "lg": mpmath.log10, "ln": mpmath.ln, "exp": mpmath.exp,
    "cis": mpmath.expj,
}  # fmt: skip
OTHER_FORMS = {
    r"|{}|": mpmath.fabs, r"\lfloor {}\rfloor": mpmath.floor, r"\lceil {}\rceil": mpmath.ceil, 
    r"\sqrt{{{}}}": mpmath.sqrt,
    r"\max({},1)": lambda x: max(x, 1), r"\min({},1)": lambda x: min(x, 1), "({})^2": lambda x: x * x,
    "{}": lambda x: x,
    "({})!": lambda x: mpmath.gamma(x + 1), "-{}": lambda x: -x,
}  # fmt: skip
SERVED = {rf"\{name}({{}})": value for name, value in VALUES.items()} | OTHER_FORMS


def test_functions_are_the_same_only_where_they_are_at_random_real_points():
    rng = random.Random(1)
    points = [mpmath.mpf(rng.uniform(0.05, 0.95)) for _ in range(8)] + [
        mpmath.mpf(rng.uniform(1, 40)) for _ in range(8)
    ]
    wrong = []
    for (one, value), (other, found) in permutations(SERVED.items(), 2):
        if rng.random() < 0.3:
            equal = all(mpmath.almosteq(value(x), found(x), 1e-9) for x in points)
            if right(one.format("x"), other.format("x")) and not equal:
                wrong.append((one, other))
    assert wrong == []


@pytest.mark.parametrize("seed", range(4))
def test_two_floors_with_steps_at_different_places_differ(seed):
    """At any scale, for slopes and starts near each other, and floors within floors."""
    rng = random.Random(seed)
    size, shift = rng.choice([1, 7, 50, 200, 1000]), rng.choice(["0.01", "0.001", r"\frac{1}{20}"])
    one = rf"\lfloor \frac{{x}}{{{size}}}\rfloor"
    others = [
        rf"\lfloor \frac{{x}}{{{size}}}+{shift}\rfloor", rf"\lfloor \frac{{x}}{{{size + 1}}}\rfloor",
        rf"\lceil \frac{{x}}{{{size}}}\rceil-1", rf"\lfloor \frac{{1.01x}}{{{size}}}\rfloor",
        rf"\lfloor \frac{{x}}{{{size}}}-{size}-{shift}\rfloor+{size}",
    ]  # fmt: skip
    assert [other for other in others if right(other, one) or right(one, other)] == []
    same = [rf"\lfloor \frac{{\lfloor x\rfloor}}{{{size}}}\rfloor", rf"-\lceil -\frac{{x}}{{{size}}}\rceil"]
    assert [other for other in same if not right(other, one)] == []


def test_the_test_above_can_fail(monkeypatch):
    """Without solving for the kinks, at fixed points alone."""
    monkeypatch.setattr(points, "around_kinks", lambda *args: iter(()))
    assert right(r"\lfloor x+0.001\rfloor", r"\lfloor x\rfloor")
    assert right(r"\lceil \frac{x}{200}\rceil-1", r"\lfloor \frac{x}{200}\rfloor")
