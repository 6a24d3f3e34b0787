"""The gold answers of the six benchmarks, each against itself, its neighbour and its own solution."""

import json

import pytest

from answer_judge.grading import verifier as module
from answer_judge.grading.judge import read_gold

FILES = {
    "gsm8k": "gsm8k_test",
    "math500": "math500",
    "aime24": "aime24",
    "amc23": "amc23",
    "minerva_math": "minerva_math",
    "olympiadbench": "olympiadbench",
}
ONLY_TEXT = {"olympiadbench/1965", "olympiadbench/2045"}
"""Gold answers that no rule can read: a sentence with conditions, and an interval after a letter."""
EQUAL_BY_CHANCE = {("5", "x=5")}
"""Answers of neighbouring problems that mean the same."""
NO_ANSWER_IN_SOLUTION = {"aime24/I-6"}
UNREAD_SOLUTION = {"minerva_math/005"}
"""It ends in ``np.arcsin(10/13)``."""


@pytest.fixture(scope="module", params=FILES)
def benchmark_rows(request, real_data):
    with (real_data / "eval" / f"{FILES[request.param]}.jsonl").open(encoding="utf-8") as lines:
        return request.param, [json.loads(line) for line in lines]


@pytest.fixture
def no_short_cut(monkeypatch):
    """No comparison as text, so that equal texts prove nothing."""
    monkeypatch.setattr(module, "plain_match", lambda answer, gold: None)


def ids(rows, verdicts, *reasons):
    return {row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.reason in reasons}


def test_every_gold_answer_is_itself_and_not_its_neighbour(benchmark_rows, verifier, no_short_cut):
    name, rows = benchmark_rows
    golds, details = [row["answer"] for row in rows], [row["meta"] for row in rows]
    texts = [rf"So the answer is $\boxed{{{gold}}}$." for gold in golds]
    same = verifier.verify_many(texts, golds, benchmark=name, details=details)
    assert [(row["id"], verdict.reason) for row, verdict in zip(rows, same, strict=True) if verdict.value != 1.0] == []
    different = [i for i in range(len(rows)) if golds[i].strip() != golds[i - 1].strip()]
    shifted = verifier.verify_many(
        [texts[i - 1] for i in different],
        [golds[i] for i in different],
        benchmark=name,
        details=[details[i] for i in different],
    )
    accepted = {(golds[i - 1], golds[i]) for i, verdict in zip(different, shifted, strict=True) if verdict.value}
    near = {pair for pair in accepted if name == "minerva_math" and share_apart(*pair) <= 0.01}
    assert accepted - near <= EQUAL_BY_CHANCE


def share_apart(one, other):
    """How far two decimals are apart, as a share of the second."""
    return abs(float(one) / float(other) - 1)


def test_the_gold_answers_no_rule_can_read_are_known(benchmark_rows):
    _, rows = benchmark_rows
    unread = {
        row["id"]
        for row in rows
        if read_gold(row["answer"], row["meta"].get("is_multiple_answer"), row["meta"].get("unit") or "") is None
    }
    assert unread == {known for known in ONLY_TEXT if known in {row["id"] for row in rows}}


def test_the_solutions_that_come_with_the_sets_are_right(benchmark_rows, verifier):
    name, rows = benchmark_rows
    rows = [row for row in rows if row["solution"]] if name != "olympiadbench" else []  # those name no final answer
    verdicts = verifier.verify_many(
        [row["solution"] for row in rows],
        [row["answer"] for row in rows],
        benchmark=name,
        details=[row["meta"] for row in rows],
    )
    assert ids(rows, verdicts, "wrong", "timeout", "crashed") == set()
    assert ids(rows, verdicts, "unparsed") <= UNREAD_SOLUTION
    assert len(ids(rows, verdicts, "no_answer")) <= len(NO_ANSWER_IN_SOLUTION)
