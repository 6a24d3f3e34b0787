"""The test cases of other graders, as facts: what they ask, what they say, and our own judgement where we differ."""

import csv
from pathlib import Path

import pytest

from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge

TABLE = Path(__file__).with_name("public_pairs.tsv")
UNREAD = "not read: "
"""How the reason begins where an answer is right and is refused."""


@pytest.fixture(scope="module")
def rows():
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def found(row):
    if plain_match(row["answer"], row["gold"]):
        return "right"
    return "right" if judge({"answer": row["answer"], "gold": row["gold"]}) == "right" else "wrong"


def test_verdicts_are_our_own_judgement(rows):
    said = {(row["gold"], row["answer"]): found(row) for row in rows}
    expected = {
        (row["gold"], row["answer"]): "wrong" if row["reason"].startswith(UNREAD) else row["verdict"] for row in rows
    }
    assert {pair: said[pair] for pair in said if said[pair] != expected[pair]} == {}


def test_every_difference_has_a_reason_and_every_grader_is_there(rows):
    for row in rows:
        assert {row["there"], row["verdict"]} <= {"right", "wrong"}
        assert bool(row["reason"]) == (row["there"] != row["verdict"] or row["reason"].startswith(UNREAD)), row
    assert {row["source"].split()[0] for row in rows} == {
        "hendrycks/math", "NVIDIA/NeMo-Skills", "huggingface/Math-Verify",
    }  # fmt: skip
    assert len(rows) > 250
