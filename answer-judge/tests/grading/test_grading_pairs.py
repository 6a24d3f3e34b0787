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


@pytest.fixture(scope="module")
def rows():
    return table("verifier")


@pytest.fixture(scope="module")
def reasons(rows, verifier):
    """The verdict on every row, each as the box at the end of a sentence."""
    found = {}
    for rule in RULES:
        mine = [i for i, row in enumerate(rows) if row["rule"] == rule]
        texts = [rf"Thus the answer is $\boxed{{{rows[i]['answer']}}}$." for i in mine]
        details = [json.loads(rows[i]["details"] or "null") for i in mine]
        verdicts = verifier.verify_many(texts, [rows[i]["gold"] for i in mine], benchmark=rule, details=details)
        found.update(zip(mine, (verdict.reason for verdict in verdicts), strict=True))
    return [found[i] for i in range(len(rows))]


@pytest.mark.parametrize("verdict", ["right", "wrong", "refused"])
def test_right_answers_are_accepted_and_no_other(verdict, rows, reasons):
    found = [(row, reason) for row, reason in zip(rows, reasons, strict=True) if row["verdict"] == verdict]
    assert [(row, reason) for row, reason in found if (reason == "right") != (verdict == "right")] == []
    assert {reason for _, reason in found} <= {"right", "wrong", "unparsed", "no_answer"}


def test_tolerance_is_the_benchmarks_alone(verifier):
    text = r"\boxed{3.83 \times 10^{26}}"
    verdicts = {rule: verifier.verify(text, r"3.8 \times 10^{26}", benchmark=rule).reason for rule in RULES}
    assert [rule for rule, reason in verdicts.items() if reason == "right"] == ["minerva_math"]


UNREAD = "not read: "
"""Beginning of the reason if an answer is right and refused."""


def is_right(row):
    matched = plain_match(row["answer"], row["gold"])
    return bool(matched) or judge({"answer": row["answer"], "gold": row["gold"]}) == "right"


def test_every_difference_from_other_graders_has_a_reason():
    public = table("public")
    expected = [row["verdict"] == "right" and not row["reason"].startswith(UNREAD) for row in public]
    assert [row for row, right in zip(public, expected, strict=True) if is_right(row) != right] == []
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
