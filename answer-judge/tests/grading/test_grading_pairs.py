"""The tables of answers: right, wrong, or right and refused because nothing reads them."""

import csv
import json
from pathlib import Path

import pytest

from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge
from answer_judge.grading.verifier import RULES


def table(name):
    with Path(__file__).with_name(f"{name}_pairs.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_right_answers_are_accepted_and_no_other(verifier):
    """Each as the box at the end of a sentence."""
    assert {row["rule"] for row in table("verifier")} <= set(RULES)
    for rule in RULES:
        rows = [row for row in table("verifier") if row["rule"] == rule]
        texts = [rf"Thus the answer is $\boxed{{{row['answer']}}}$." for row in rows]
        details = [json.loads(row["details"] or "null") for row in rows]
        verdicts = verifier.verify_many(texts, [row["gold"] for row in rows], benchmark=rule, details=details)
        found = [(row, verdict.reason) for row, verdict in zip(rows, verdicts, strict=True)]
        assert [each for each in found if (each[1] == "right") != (each[0]["verdict"] == "right")] == []
        assert {reason for _, reason in found} <= {"right", "wrong", "unparsed", "no_answer"}


def test_tolerance_is_the_benchmarks_alone(verifier):
    text = r"\boxed{3.83 \times 10^{26}}"
    verdicts = {rule: verifier.verify(text, r"3.8 \times 10^{26}", benchmark=rule).reason for rule in RULES}
    assert [rule for rule, reason in verdicts.items() if reason == "right"] == ["minerva_math"]


def is_right(row):
    matched = plain_match(row["answer"], row["gold"])
    return bool(matched) or judge({"answer": row["answer"], "gold": row["gold"]}) == "right"


def test_every_difference_from_other_graders_has_a_reason():
    public = table("public")
    right = [row for row in public if row["verdict"] == "right" and not row["reason"].startswith("not read: ")]
    assert [row for row in public if is_right(row)] == right
    assert all(row["reason"] for row in public if row["there"] != row["verdict"])
    sources = {row["source"].split()[0] for row in public}
    assert sources == {"hendrycks/math", "NVIDIA/NeMo-Skills", "huggingface/Math-Verify"} and len(public) > 250


def test_formulas_are_read_as_people_read_them_and_not_mistaken():
    for row in table("formula"):
        pair = row["answer"], row["gold"]
        found = {judge({"answer": one, "gold": other}) == "right" for one, other in (pair, pair[::-1])}
        assert found == {row["verdict"] == "right"}, row


@pytest.mark.parametrize("name", ["words", "written"])
def test_words_and_units_around_an_answer_are_neither_ignored_nor_taken_for_letters(name):
    """``written``: as models write answers, right ones and near misses."""
    assert [row for row in table(name) if is_right(row) != (row["verdict"] == "right")] == []
