"""The one file format all benchmarks write."""

import json
from pathlib import Path
from typing import Any

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
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
