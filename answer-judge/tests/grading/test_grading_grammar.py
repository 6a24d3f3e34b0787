"""No number reaches math-verify's grammar, which would evaluate it as Python."""

import pytest

from answer_judge.grading import formula
from answer_judge.grading import judge as judge_module
from answer_judge.grading.judge import judge


@pytest.fixture
def shapes(monkeypatch):
    """The formulas the grammar is asked for, none of which is remembered from before."""
    seen, ask = [], formula._shape.__wrapped__
    monkeypatch.setattr(formula, "_shape", lambda latex: seen.append(latex) or ask(latex))
    judge_module._read.cache_clear()
    return seen


def test_numbers_arrive_as_names(shapes):
    judge({"answer": r"\frac{17}{23} x", "gold": "E_1"})
    assert set(shapes) == {r"(\frac{\variable{0}}{\variable{1}})\cdot \variable{x}", r"\variable{ESUB1}"}
