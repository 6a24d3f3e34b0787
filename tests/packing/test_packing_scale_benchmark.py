"""The benchmark of growth runs from one command and writes what it measured, and on what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURES = {"unit", "median", "quartile_low", "quartile_high", "repeats", "per_completion", "growth", "bar"}


@pytest.mark.slow
def test_one_command_prints_a_table_and_writes_flat_records(tmp_path: Path):
    output = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--quick", "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    content = json.loads(output.read_text())
    assert set(content) == {"rows", "environment"}
    assert {"processor", "cores", "python", "versions", "commit", "seeds", "threads"} <= set(content["environment"])
    assert len(printed.splitlines()) == len(content["rows"]) + 1
    for row in content["rows"]:
        assert {"figure", "size"} | MEASURES <= set(row)
        assert all(value is None or isinstance(value, str | int | float) for value in row.values())
    fits = {row["figure"]: row["median"] for row in content["rows"] if row["unit"] == "exponent"}
    assert fits.keys() >= {f"growth_of_{part}" for part in ("draw", "bins", "plan_rows", "layout")}
    assert fits.keys() >= {"growth_of_plan_step", "growth_of_deal_to_8_ranks", "growth_of_history_block"}
    assert 0.9 < fits["growth_of_memory_of_history"] < 1.1
    shares = {(row["figure"], row["size"]): row["median"] for row in content["rows"] if row["unit"] == "share"}
    at_home, dealt = (shares[f"idle_share_{which}_8_prompts_a_rank", 8] for which in ("at_home", "dealt"))
    assert 0 <= dealt < 0.5 * at_home < 1, "half of what ranks wait, at the least, goes by dealing"
    assert 0.9 < fits["growth_of_memory_of_all_rows"] < 1.1, "as many tokens per completion in every batch"
