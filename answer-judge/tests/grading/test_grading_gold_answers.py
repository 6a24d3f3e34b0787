"""The gold answers of the six benchmarks, each against itself and its neighbour."""

import json
from dataclasses import asdict

import pytest

from answer_judge.grading.judge import judge, read_gold
from answer_judge.grading.rules import RULES, with_details

ONLY_TEXT = {"olympiadbench/1965", "olympiadbench/2045"}
"""Gold answers that no rule can read: a sentence with conditions, and an interval after a letter."""
EQUAL_BY_CHANCE = {("5", "x=5")}
"""Answers of neighbouring problems that mean the same."""


@pytest.mark.parametrize("name", ["gsm8k", "math500", "aime24", "amc23", "minerva_math", "olympiadbench"])
def test_every_gold_answer_is_itself_and_not_its_neighbour(name, real_data):
    """By the mathematics alone: equal texts prove nothing."""
    path = real_data / "eval" / ("gsm8k_test.jsonl" if name == "gsm8k" else f"{name}.jsonl")
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    gradings = [with_details(RULES[name], row["meta"]) for row in rows]
    golds = [row["answer"].strip() for row in rows]

    def right(answer, i):
        return judge({"answer": answer, "gold": golds[i], "grading": asdict(gradings[i])}) == "right"

    assert [rows[i]["id"] for i in range(len(rows)) if not right(golds[i], i)] == []
    different = [i for i in range(len(rows)) if golds[i] != golds[i - 1]]
    accepted = {(golds[i - 1], golds[i]) for i in different if right(golds[i - 1], i)}
    near = {pair for pair in accepted if name == "minerva_math" and abs(float(pair[0]) / float(pair[1]) - 1) <= 0.01}
    assert accepted - near <= EQUAL_BY_CHANCE
    readings = [read_gold(gold, each.several, each.unit) for gold, each in zip(golds, gradings, strict=True)]
    unread = {row["id"] for row, value in zip(rows, readings, strict=True) if value is None}
    assert unread == ONLY_TEXT & {row["id"] for row in rows}
