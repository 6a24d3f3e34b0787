"""Two data-parallel ranks: rows are dealt to both, fillers make up what is missing, and the gradient stays unbiased."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environment import free_port

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(toy, tmp_path_factory):
    out, port = tmp_path_factory.mktemp("ranks") / "found.json", str(free_port())
    command = [[sys.executable, "two_ranks.py", str(rank), port, str(toy), str(out)] for rank in (0, 1)]
    ranks = [subprocess.Popen(each, cwd=HERE, stderr=subprocess.PIPE, text=True) for each in command]
    try:
        errors = [rank.communicate(timeout=900)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors[0][-2000:] + errors[1][-2000:]
    return {each["mode"]: each for each in json.loads(out.read_text())}


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "cuts", "rows"])
def test_the_mean_over_every_draw_on_two_ranks_is_verls_gradient(found, mode):
    print(found[mode])
    assert found[mode]["bias"] < 2e-6 < 0.1 < found[mode]["forgotten"]  # and forgotten weights are seen
    if mode != "cuts":  # ranks get as many rows each, and fillers if some are missing
        assert {(rows, step, whole) for rows, step, whole, _ in found[mode]["sent"]} == {
            (4, 4, 8),
            (6, 6, 8),
            (8, 8, 8),
        }
        assert {fillers for *_, fillers in found[mode]["sent"]} == {0, 1}
    if mode != "rows":  # ranks forward about as many tokens before the update
        assert found[mode]["apart"] <= 1  # in longest rows
