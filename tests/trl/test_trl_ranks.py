"""Two processes over gloo: the gradient is TRL's, and ranks with different numbers of kept rows stay in step."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_two_ranks(tiny_path, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    script = str(Path(__file__).parent / "two_ranks.py")
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, script, tiny_path, str(tmp_path)], env=environment, capture_output=True, timeout=400
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    results = json.loads((tmp_path / "two_ranks.json").read_text())
    assert results["dapo"] < 1e-5 and results["grpo"] < 1e-5
    assert results["apart"] == 0.0 and results["odd_apart"] == 0.0
    assert results["steps_without_rows"] == 2
    assert results["kept"][0] > 0
    assert results["odd"][-1] == 4 / 6  # three of six would be nine rows, which two ranks cannot share
