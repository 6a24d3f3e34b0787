"""What docs/verifier.md says of the grammar is what happens."""

import json
import re
from pathlib import Path

import pytest

from answer_judge.grading import formula
from answer_judge.grading import judge as judge_module
from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge

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
    assert len(ROWS) == 7
    judge({"answer": r"\frac{17}{23} x", "gold": "E_1"})
    assert set(shapes) == {r"(\frac{\variable{0}}{\variable{1}})\cdot \variable{x}", r"\variable{ESUB1}"}
    assert all(shape in PAGE for shape in shapes)


def test_measured_figures_are_those_recorded():
    rows = json.loads((ROOT / "judge_benchmarks" / "results" / "verifier.json").read_text())["rows"]
    by_figure = {name: [row for row in rows if row["figure"] == name] for name in {row["figure"] for row in rows}}
    table, hostile = by_figure["table"][-1], by_figure["hostile"][-1]
    golds, peer = by_figure["gold answers"], {r["what"]: r for r in by_figure["math-verify"] if r["kind"] == "all"}
    said = [
        f"{table['right']:,} right and {table['wrong']:,} wrong; no false accept, "
        f"{table['false_reject']} false rejects",
        f"{sum(r['right'] for r in golds):,} of {sum(r['rows'] for r in golds):,} right",
        f"| {sum(r['numbers_changed'] for r in golds):,}; {sum(r['changed_accepted'] for r in golds)} accepted",
        *(f"{r['kind'].removesuffix(' 6:3:1')} {r['per_second']:,.0f}" for r in by_figure["throughput"][:3]),
        f"a mixture of 6 : 3 : 1 of them {by_figure['throughput'][3]['per_second']:,.0f}",
        f"{hostile['answers']:,} hostile answers, limit {hostile['limit_seconds']:.0f} s | {hostile['seconds']:.0f} s",
        ", ".join(f"{hostile[name]:,} {name.replace('_', ' ')}" for name in ("right", "wrong", "no_answer", "unparsed"))
        + f", {hostile['timeout']} timeouts, {hostile['crashed']} crashes",
        f"; workers at most {hostile['worker_peak_mb']} MB, the caller grew by {hostile['caller_growth_mb']} MB",
        f"{peer['right answer, dppo has it']['of']:,} pairs of the default rule | it says no to "
        f"{peer['right answer, dppo has it']['count']} right answers that are right here",
        f"yes to {peer['wrong answer, dppo has it']['count']} wrong ones; "
        f"{peer['right answer, math-verify has it']['count']} right ones are right there alone",
    ]
    assert [text for text in said if text not in PAGE] == []
    assert table["false_accept"] == hostile["right"] == 0
