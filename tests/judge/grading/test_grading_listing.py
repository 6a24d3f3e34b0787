"""A text that names several answers earns nothing, and a letter is a letter: properties of golds of every kind."""

import csv
import random
import string
from itertools import permutations
from pathlib import Path

import mpmath
import pytest

from answer_judge.grading import points
from answer_judge.grading.judge import judge
from answer_judge.grading.options import labelled, named_options
from answer_judge.grading.text import FUNCTIONS, tidy

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


@pytest.mark.parametrize("kind", GOLDS)
def test_no_text_is_right_for_golds_of_two_kinds(kind):
    """``7 east`` is 7 with a word behind it, and never east too; ``(B) 7`` is an option and what it says."""
    rng = random.Random(kind)
    accepted = []
    for gold in GOLDS[kind]:
        other = rng.choice([each for name, golds in GOLDS.items() if name != kind for each in golds])
        for joint in () if same_thing(gold, other) else JOINTS:
            texts = (f"{gold}{joint}{other}", f"{other}{joint}{gold}")
            both = [text for text in texts if right(text, gold) and right(text, other)]
            accepted += [(text, gold, other) for text in both if not is_one_answer(text, kind, joint)]
    assert accepted == []


def is_one_answer(text, kind, joint):
    """The letter of an option before its text, and a chain or union that has one value."""
    label = labelled(tidy(text))
    if label is not None and not named_options(label[1]):
        return True
    return joint == r" \cup " and kind in ("interval", "set")  # of which one may hold the other


@pytest.mark.parametrize("letter", "ABCDE")
@pytest.mark.parametrize(
    "form", ["({})", "{}.", r"\text{{{}}}", r"\text{{({})}}", "{}", r"\mathbf{{({})}}", "{})", r"\textbf{{{}.}}"]
)
@pytest.mark.parametrize("joint", [" ", "", ", ", r"\ ", " and ", "/"])
def test_all_options_together_are_no_option(letter, form, joint):
    listed = joint.join(form.format(each) for each in "ABCDE")
    assert not right(listed, letter) and not right(f"{listed} 3", letter) and not right(f"{listed} 3", "3")
    assert right(form.format(letter), letter) or form == "{})"


RENAMED = [
    # answer, gold, verdict; @ is the letter
    ("-2<@<3", "(-2,3)", "right"),
    (r"-2\le @<3", "(-2,3)", "wrong"),
    ("|@|<1", "(-1,1)", "right"),
    (r"\{@ \mid @>1\}", r"(1,\infty)", "right"),
    (r"@ \ge 4", r"[4,\infty)", "right"),
    (r"4 \le @", r"@ \ge 4", "right"),
    (r"@ \in (1,2]", "1<@ \\le 2", "right"),
    (r"@ \ne 3", r"@ \ne 4", "wrong"),
    ("@=5", "5", "right"),
    ("5=@", "@=5", "right"),
    ("@=5", "6", "wrong"),
]
OF_FORMULAS = [
    ("2@+1", "1+@+@", "right"),
    ("2@+1", "2@-1", "wrong"),
    ("(@+1)(@-1)", "@^2-1", "right"),
    (r"\frac{@}{2}", "0.5@", "right"),
    ("y=2@+1", "2@-y+1=0", "right"),
    (r"\sin^2 @", r"1-\cos^2 @", "right"),
    (r"\lfloor @\rfloor", r"\lceil @\rceil", "wrong"),
    ("(@,2@)", "(@,@+@)", "right"),
    ("3@", r"\{3@\}", "right"),
    (r"\sqrt{@^2}", "@", "wrong"),
]


@pytest.mark.parametrize(("answer", "gold", "verdict"), RENAMED)
def test_any_letter_may_stand_in_a_relation(answer, gold, verdict):
    found = {letter: right(answer.replace("@", letter), gold.replace("@", letter)) for letter in string.ascii_lowercase}
    assert set(found.values()) == {verdict == "right"}, found


@pytest.mark.parametrize(("answer", "gold", "verdict"), OF_FORMULAS)
def test_any_letter_but_e_and_i_may_stand_in_a_formula(answer, gold, verdict):
    letters = set(string.ascii_lowercase) - set("eiy" if "y" in answer else "ei")
    found = {letter: right(answer.replace("@", letter), gold.replace("@", letter)) for letter in letters}
    assert set(found.values()) == {verdict == "right"}, found


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


def test_every_function_served_is_among_the_examples():
    assert set(VALUES) == set(FUNCTIONS)


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


@pytest.mark.parametrize("seed", range(6))
def test_floors_are_compared_between_whole_numbers(seed):
    rng = random.Random(seed)
    a, b, c = rng.randint(1, 5), rng.randint(-9, 9), rng.choice([1, 2, 3, 4])
    inner = rf"\frac{{{a}x{b:+d}}}{{{c}}}"
    assert right(rf"\lfloor {inner}\rfloor", rf"-\lceil -{inner}\rceil")
    assert not right(rf"\lfloor {inner}\rfloor", rf"\lceil {inner}\rceil")
    assert not right(rf"{inner}-\lfloor {inner}\rfloor", "0")


@pytest.mark.parametrize("seed", range(8))
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


def test_the_table_of_pairs_lists_options_of_every_letter():
    with Path(__file__).with_name("verifier_pairs.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    listed = {row["gold"] for row in rows if len(named_options(row["answer"])) > 2 and row["verdict"] == "wrong"}
    assert set("ABCDE") <= listed and len(rows) >= 1_500
