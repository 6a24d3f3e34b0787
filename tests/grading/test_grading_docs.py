"""What docs/verifier.md says of the grammar is what happens."""

import re
from pathlib import Path

import pytest

from dppo.grading import formula
from dppo.grading import judge as judge_module
from dppo.grading.answers import plain_match
from dppo.grading.judge import judge

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verifier.md").read_text()
ROWS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `(right|wrong)` \| (\d) \|$", PAGE, re.MULTILINE)


@pytest.fixture
def shapes(monkeypatch):
    """The formulas the grammar is asked for, none of which is remembered from before."""
    seen, ask = [], formula._shape.__wrapped__
    monkeypatch.setattr(formula, "_shape", lambda latex: seen.append(latex) or ask(latex))
    judge_module._read.cache_clear()
    return seen


@pytest.mark.parametrize(("answer", "gold", "verdict", "count"), ROWS)
def test_table_of_what_the_grammar_is_asked_for(answer, gold, verdict, count, shapes):
    judged = {True: "right", False: "wrong", None: judge({"answer": answer, "gold": gold})}
    assert judged[plain_match(answer, gold)] == verdict and len(shapes) == int(count)
    assert not any(character.isdigit() for shape in shapes for character in re.sub(r"\\variable\{\w+\}", "", shape))


def test_the_table_is_there_and_numbers_arrive_as_names(shapes):
    assert len(ROWS) == 12
    judge({"answer": r"\frac{17}{23} x", "gold": "E_1"})
    assert set(shapes) == {r"(\frac{\variable{0}}{\variable{1}})\cdot \variable{x}", r"\variable{ESUB1}"}
    assert all(shape in PAGE for shape in shapes)


def test_only_one_function_calls_math_verify():
    library = {path.name: path.read_text() for path in (ROOT / "dppo").rglob("*.py")}
    assert [
        name for name, source in library.items() if re.search(r"^\s*(?:from|import) math_verify", source, re.M)
    ] == []
    calls = {name: len(re.findall(r"\blatex2sympy\(", source)) for name, source in library.items()}
    assert {name: count for name, count in calls.items() if count} == {"formula.py": 1}
