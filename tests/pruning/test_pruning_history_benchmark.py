"""The benchmark of the history's settings: its figure by hand, one command, and a table that is that of the file."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "history.json"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("history_benchmark", ROOT / "benchmarks" / "history.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_mean_square_is_that_by_hand(bench):
    """Two prompts, one completion each a step, 32 prompts to an epoch of one step by the count of completions."""
    steps = [(torch.tensor([0, 1]), torch.tensor([[1.0], [0.0]]).double()) for _ in range(3)]
    run = bench.Recorded(size=64, prompts=[[1]] * 2, steps=steps)
    assert run.epoch == 2
    single = bench.Recorded(size=1, prompts=[[1]] * 128, steps=steps)
    assert single.epoch == 2
    first, later = bench.mean_square(single, decay=1.0, strength=2.0, half_life=1e9, discount=None)
    assert first == pytest.approx((2 * 0.5 / 3) ** 2), "step 1: the prior is worth two, what was seen one"
    assert later == pytest.approx((2 * 0.5 / 4) ** 2)
    worse = bench.mean_square(single, decay=0.1, strength=2.0, half_life=1e9, discount=None)[1]
    assert worse > later, "what is forgotten is missed where nothing changes"


@pytest.mark.slow
def test_one_command_prints_a_table_and_writes_flat_records(tmp_path):
    output = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "history.py"), "--quick", "--output", str(output)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads(output.read_text())["rows"]
    assert {row["size"] for row in rows} == {1, 2, 4} and all(row["later"] > 0 for row in rows)
    assert printed.count("| 0.8 |") == 3


def test_the_page_has_the_table_of_the_file(bench):
    rows, page = json.loads(RESULTS.read_text())["rows"], (ROOT / "docs" / "log.md").read_text()
    lines = [line for line in bench.table(rows) if line]
    assert len(lines) == 3 * (2 + len(bench.DECAYS)) and all(line in page for line in lines)
    changed = [{**row, "later": row["later"] + 1} for row in rows]
    assert not all(line in page for line in bench.table(changed) if line)
