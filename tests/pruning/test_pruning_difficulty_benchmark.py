"""The benchmark of difficulty runs from one command and writes what it measured, and on what."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "difficulty.json"
PAGE = (ROOT / "docs" / "difficulty.md").read_text()


@pytest.mark.slow
def test_one_command_prints_a_table_and_writes_flat_records(tmp_path: Path):
    output = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "difficulty.py"), "--quick", "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    content = json.loads(output.read_text())
    assert {"processor", "cores", "python", "versions", "commit", "seeds", "threads"} <= set(content["environment"])
    assert {row["figure"] for row in content["rows"]} == {row["figure"] for row in rows()} - {"held_out_accuracy"}
    assert len(printed.splitlines()) == sum(row.get("step") is None for row in content["rows"])
    assert all(
        value is None or isinstance(value, str | int | float) for row in content["rows"] for value in row.values()
    )


def rows():
    return json.loads(RESULTS.read_text())["rows"]


def figure(figure, **wanted):
    """The value of the one record with these entries."""
    (row,) = [r for r in rows() if r["figure"] == figure and all(r[key] == value for key, value in wanted.items())]
    return row["value"]


def line(*cells):
    """A line of a table on the page."""
    return "| " + " | ".join(cells) + " |"


def test_the_tables_on_the_page_are_those_of_the_file():
    policy = "log-probability, hidden state"
    for prior, own in (
        ("mean over all", True),
        ("length", False),
        ("length", True),
        (f"length, {policy}", False),
        (policy, False),
    ):
        found = [figure("auc", prior=prior, own_history=own, step=None, epoch=epoch) for epoch in range(3)]
        assert line(prior + ", with own history" * own, *(f"{value:.2f}" for value in found)) in PAGE
    for epoch in (0, 1):
        for size in (1, 2, 4):
            of = {"completions": size, "epoch": epoch}
            siblings = f"{figure('advantage_square', prior='siblings alone', **of):.3f}" if size > 1 else ""
            found = [
                figure("advantage_square", prior=prior, strength=2.0, **of) for prior in ("mean over all", "length")
            ]
            cells = line(str(size), str(epoch + 1), siblings, *(f"{value:.3f}" for value in found))
            assert cells.replace("|  |", "| |") in PAGE
    by_start = {}
    for row in rows():
        if row["figure"] == "held_out_accuracy":
            by_start.setdefault((row["completions"], row["prior"]), {}).setdefault(row["seed"], []).append(row["value"])
    for size in (1, 2):
        plain, length = (
            np.array([np.mean(values) for values in by_start[size, prior].values()])
            for prior in ("mean over all", "length")
        )
        gain = length - plain
        each, error = ", ".join(f"{value:+.3f}" for value in gain), gain.std(ddof=1) / np.sqrt(len(gain))
        means = f"{plain.mean():.3f}", f"{length.mean():.3f}"
        assert line(str(size), *means, each, f"{gain.mean():+.3f} ± {error:.3f}") in PAGE
    assert line("1", *means, each, f"{gain.mean():+.3f} ± {error:.3f}") not in PAGE, "the wrong twin: another line"


def test_a_step_costs_less_than_its_bar():
    (row,) = [row for row in rows() if row["figure"] == "predict_and_update"]
    assert row["median"] < row["bar"] and f"take {row['median']:.1f} ms a step" in PAGE
