"""The last run of ``tests_verl/speed.py``, which docs/verl.md shows, is within its bars."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks" / "results" / "verl.json").read_text())
RATIOS = FOUND["step_without_rollout"]
SILENT = "0.5, no KL, 60% dead"


@pytest.mark.parametrize(
    ("rate", "least"), [("0.5", 1.8), ("0.7", 2.6), ("cuts 0.5", 1.8), ("cuts 0.7", 2.6), (SILENT, 4.0)]
)
def test_the_step_without_rollout_is_as_much_faster_as_it_should_be(rate, least):
    assert RATIOS[rate] >= least


def test_seconds_of_each_pass_go_by_the_tokens_that_it_goes_over():
    passes = [row for row in FOUND["rows"] if row["phase"] != "step"]
    assert len(passes) == 5 * 3 + 2 * 2
    assert all(row["share"] / row["tokens_share"] == pytest.approx(1, abs=0.1) for row in passes)
    assert {row["phase"]: row["rows"] for row in passes if row["case"] == "0.5"} == dict(old=64, ref=64, update=64)
