"""The benchmark of growth runs from one command and writes what it measured, and on what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.scale.growth import with_growth
from benchmarks.scale.steps import record, tokens_of_ranks
from benchmarks.shared import met, spread_with_ends
from dppo.trl.grpo.rollouts import NOWHERE, Lengths

ROOT = Path(__file__).parents[2]
MEASURES = {"unit", "median", "quartile_low", "quartile_high", "repeats", "per_completion", "growth", "bar"}


def of_size(size, milliseconds):
    return record("x", size, {"unit": "ms", **spread_with_ends([milliseconds])})


def test_growth_is_the_exponent_between_sizes_and_over_all():
    """By hand: from 10 to 100 linear, from 100 to 1,000 as the square; over all three the slope is 1.5."""
    first, second, third, fit = with_growth([of_size(10, 1.0), of_size(100, 10.0), of_size(1000, 1000.0)])
    assert first["growth"] is None and second["growth"] == pytest.approx(1) and third["growth"] == pytest.approx(2)
    assert fit["figure"] == "growth_of_x" and fit["median"] == pytest.approx(1.5) and fit["repeats"] == 3
    assert second["per_completion"] == 100 and second["per_completion_unit"] == "us"
    assert met(fit) == "1.2 MISSED" and met({**fit, "median": 1.1}) == "1.2 met" and met(first) == ""


def test_a_rank_forwards_the_prompt_of_a_group_once():
    """The wrong twin has it once for each completion."""
    lengths = Lengths(
        prompt_N=torch.tensor([7, 7, 7, 5]),
        completion_UN=torch.tensor([[1, 2, 3, 4]]),
        group_N=torch.tensor([0, 0, 0, 1]),
    )
    found = tokens_of_ranks(lengths, torch.tensor([0, 0, 1, NOWHERE]), 2)
    assert found.tolist() == [1 + 2 + 7, 3 + 7] and found.tolist() != [1 + 2 + 14, 3 + 7]


@pytest.mark.slow
def test_one_command_prints_a_table_and_writes_flat_records(tmp_path: Path):
    output = tmp_path / "metrics.json"
    command = [sys.executable, "-m", "benchmarks.scale.growth", "--quick", "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
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
