"""docs/code.md says what the file of results says, and names what there is."""

import json
from pathlib import Path

from sandbox_programs import hostile_corpus

from judge_benchmarks.hostile_programs import markdown, speed

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "code.md").read_text()
ROWS = json.loads((ROOT / "judge_benchmarks" / "results" / "hostile_programs.json").read_text())["rows"]


def test_the_table_and_the_speed_are_those_of_the_file():
    head, rule, *_, total = markdown(ROWS).splitlines()
    assert f"{head}\n{rule}\n{total}\n" in PAGE and speed(ROWS) in PAGE
    assert markdown([{**row, "accepted": 1} for row in ROWS]).splitlines()[-1] not in PAGE
    assert speed([{**row, "per_second": 1e6} for row in ROWS]) not in PAGE


def test_nothing_was_accepted_or_left_over():
    ends = [row for row in ROWS if row.get("kind") == "all"]
    assert len(ends) == 2 and all(row["programs"] >= 500 and row["accepted"] == 0 for row in ends)
    assert all(row["processes_left"] == 0 and row["largest_mb"] <= 256 for row in ends)
    assert {row["kind"] for row in ROWS if row["figure"] == "attack"} == {*hostile_corpus.KINDS, "all"}
