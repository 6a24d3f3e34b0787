"""The one file format all benchmarks write."""

from pathlib import Path
from typing import Any

from answer_judge.files import write_json
from dppo.environment import environment


def write(path: str | Path, rows: list[dict[str, Any]], seeds: list[int]) -> None:
    """Write ``{"rows": [...], "environment": {...}}`` to ``path``.

    Args:
        path: JSON file; folders are made as needed.
        rows: flat records, one per figure.
        seeds: every seed the figures depend on.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "environment": environment(seeds=seeds)}
    write_json(path, content)
