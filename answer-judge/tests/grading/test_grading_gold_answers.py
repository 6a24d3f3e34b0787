"""The gold answers of the six benchmarks, each against itself, its neighbour and its own solution."""

import json
from dataclasses import asdict

import pytest

from answer_judge.grading.answers import final_answer
from answer_judge.grading.judge import judge, read_gold
from answer_judge.grading.rules import RULES, with_details

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


def ids(rows, verdicts, *reasons):
    return {row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.reason in reasons}


def judged(name, answer, row):
    """Without the comparison as text, so that equal texts prove nothing."""
    found = final_answer(rf"So the answer is $\boxed{{{answer}}}$.")
    return judge({"answer": found, "gold": row["answer"].strip(), "grading": asdict(grading_of(name, row))})


def grading_of(name, row):
    return with_details(RULES[name], row["meta"])


def test_every_gold_answer_is_itself_and_not_its_neighbour(benchmark_rows):
    name, rows = benchmark_rows
    golds = [row["answer"] for row in rows]
    assert [(row["id"], said) for row in rows if (said := judged(name, row["answer"], row)) != "right"] == []
    different = [i for i in range(len(rows)) if golds[i].strip() != golds[i - 1].strip()]
    accepted = {(golds[i - 1], golds[i]) for i in different if judged(name, golds[i - 1], rows[i]) == "right"}
    near = {pair for pair in accepted if name == "minerva_math" and share_apart(*pair) <= 0.01}
    assert accepted - near <= EQUAL_BY_CHANCE
    gradings = [(row, grading_of(name, row)) for row in rows]
    unread = {row["id"] for row, g in gradings if read_gold(row["answer"].strip(), g.several, g.unit) is None}
    assert unread == {known for known in ONLY_TEXT if known in {row["id"] for row in rows}}


def share_apart(one, other):
    """How far two decimals are apart, as a share of the second."""
    return abs(float(one) / float(other) - 1)


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
