"""The tables of docs/verl.md are what the last run of ``tests_verl/speed.py`` measured, and its bars hold there."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks" / "results" / "verl.json").read_text())
RATIOS = FOUND["step_without_rollout"]
SILENT = "0.5, no KL, 60% dead"
SPLITS = ((10, 29, 28, 31), (30, 17, 0, 49), (45, 14, 0, 34), (70, 6, 4, 17))


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


def cell(row):
    """Rows, share of the tokens and of the seconds of a pass, as the page has them."""
    ends = f"({row['share_lowest']:.3f} to {row['share_highest']:.3f})"
    return f"{row['rows']}, {row['tokens_share']:.3f}, {row['share']:.3f} {ends}"


def test_the_page_has_these_metrics():
    page = (ROOT / "docs" / "verl.md").read_text()
    for rate in ("0.5", "0.7", "cuts 0.5", "cuts 0.7", SILENT):
        rows = {row["phase"]: row for row in FOUND["rows"] if row["case"] == rate}
        cells = [cell(rows[phase]) if phase in rows else "" for phase in ("old", "ref", "update")]
        assert f"| {' | '.join(cells)} | {RATIOS[rate]:.2f} times as fast |" in page
    for split in SPLITS:
        faster = [100 / (100 - sum(split[1:]) * (1 - 1 / RATIOS[rate])) for rate in ("0.5", "0.7", SILENT)]
        last = "-" if split[2] else f"{faster[2]:.2f}"
        row = f"| {' / '.join(str(part or '-') for part in split)} | {faster[0]:.2f} | {faster[1]:.2f} | {last} |"
        assert row in page
