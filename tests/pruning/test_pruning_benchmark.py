"""The benchmark runs from one command and writes what it measured, and on what."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_command_prints_a_table_and_writes_flat_records(tmp_path: Path):
    output = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "pruning.py"), "--quick", "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    content = json.loads(output.read_text())
    assert set(content) == {"rows", "environment"}
    assert {"processor", "cores", "python", "versions", "commit", "seeds", "threads"} <= set(content["environment"])
    assert len(printed.splitlines()) == len(content["rows"]) + 1
    for row in content["rows"]:
        assert {"figure", "design", "size", "unit", "median", "quartile_low", "quartile_high", "repeats"} <= set(row)
        assert all(value is None or isinstance(value, str | int | float) for value in row.values())
