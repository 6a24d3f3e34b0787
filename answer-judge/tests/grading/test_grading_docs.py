"""How often math-verify's grammar is asked, and that no number reaches it."""

import re

import pytest

from answer_judge.grading import formula
from answer_judge.grading import judge as judge_module
from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge

ROWS = [
    (r"35\%", "0.35", "right", 0),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", "right", 0),
    ("x=3", "3", "right", 1),
    ("x>2", r"(2,\infty)", "right", 2),
    (r"2\sqrt{3}", r"\sqrt{12}", "right", 2),
    (r"\frac{17}{23}x", "17x/23", "right", 2),
    (r"\pi", "3.14", "wrong", 1),
]
"""Answer, gold answer, verdict, formulas that the grammar is asked for."""


@pytest.fixture
def shapes(monkeypatch):
    """The formulas the grammar is asked for, none of which is remembered from before."""
    seen, ask = [], formula._shape.__wrapped__
    monkeypatch.setattr(formula, "_shape", lambda latex: seen.append(latex) or ask(latex))
    judge_module._read.cache_clear()
    return seen


@pytest.mark.parametrize(("answer", "gold", "verdict", "count"), ROWS)
def test_how_often_the_grammar_is_asked(answer, gold, verdict, count, shapes):
    judged = {True: "right", False: "wrong", None: judge({"answer": answer, "gold": gold})}
    assert judged[plain_match(answer, gold)] == verdict and len(shapes) == count
    assert not any(character.isdigit() for shape in shapes for character in re.sub(r"\\variable\{\w+\}", "", shape))


def test_numbers_arrive_as_names(shapes):
    judge({"answer": r"\frac{17}{23} x", "gold": "E_1"})
    assert set(shapes) == {r"(\frac{\variable{0}}{\variable{1}})\cdot \variable{x}", r"\variable{ESUB1}"}
