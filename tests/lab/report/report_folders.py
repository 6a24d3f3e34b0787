"""Folders of runs: those of the sample comparison that comes with the library, with changes."""

import json
from pathlib import Path
from typing import Any

from small_runs import lines_of, write_lines

from dppo.lab.runs.reader import RunRecord

SAMPLE = Path(__file__).parents[3] / "examples" / "sample_compare"
RUNS = SAMPLE / "runs"


def about_run(method: str = "dppo", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """What run.json holds."""
    about = json.loads((RUNS / method / "seed_0" / "run.json").read_text())
    config = about["config"] | {"seed": seed, "output_dir": f"runs/{method}/{seed}"}
    return {**about, "seed": seed, "config": config, **changes}


def logs(method: str, seed: int, updates: int = 25) -> list[dict[str, Any]]:
    """What metrics.jsonl holds: an evaluation and a log in turn; the sample has three seeds."""
    return [log for log in lines_of(RUNS / method / f"seed_{seed % 3}" / "metrics.jsonl") if log["step"] <= updates]


def write_run(folder: Path, method: str = "dppo", seed: int = 0, updates: int = 25, **changes: Any) -> Path:
    """A whole run, as one of the sample."""
    write_lines(folder / "metrics.jsonl", logs(method, seed, updates))
    (folder / "run.json").write_text(json.dumps(about_run(method, seed, **changes)))
    return folder


def run_of(method: str = "dppo", seed: int = 0, **fields: Any) -> RunRecord:
    """A finished run as it is read."""
    return RunRecord(folder=Path("r"), method=method, status="finished", seed=seed, **fields)
