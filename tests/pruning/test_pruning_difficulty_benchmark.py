"""The benchmark of difficulty runs from one command and writes what it measured, and on what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "difficulty.json"


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


def figure(name, **wanted):
    (row,) = [row for row in rows() if row["figure"] == name and all(row.get(k) == v for k, v in wanted.items())]
    return row["value"]
