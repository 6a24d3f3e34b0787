"""Statements of docs/verifier.md about the grammar and about what was measured."""

import json
import re
from pathlib import Path

import pytest

from answer_judge.grading import formula
from answer_judge.grading import judge as judge_module
from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge

ROOT = Path(__file__).parents[3]
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


def test_numbers_arrive_as_names(shapes):
    judge({"answer": r"\frac{17}{23} x", "gold": "E_1"})
    assert set(shapes) == {r"(\frac{\variable{0}}{\variable{1}})\cdot \variable{x}", r"\variable{ESUB1}"}
    assert all(shape in PAGE for shape in shapes)


def test_measured_figures_are_those_recorded():
    rows = json.loads((ROOT / "benchmarks" / "results" / "verifier.json").read_text())["rows"]
    table, *golds, hostile = (row for row in rows if row["figure"] in ("table", "gold answers") or "next_answer" in row)
    accepted, theirs = (sum(row[name] for row in golds) for name in ("changed_accepted", "math_verify_accepts"))
    said = [
        f"{sum(row['right'] for row in golds):,} of {sum(row['rows'] for row in golds):,} right",
        f"| {sum(row['numbers_changed'] for row in golds):,}; {accepted} accepted",
        f"math-verify called directly accepts {theirs}",
        f"{table['right']:,} right, {table['wrong']:,} wrong, {table['refused']} right",
        f"{hostile['answers']:,} hostile answers, limit {hostile['limit_seconds']:.0f} s | {hostile['seconds']:.0f} s",
    ]
    assert [text for text in said if text not in PAGE] == []
    assert table.get("false_accept", 0) == hostile["right"] == 0
