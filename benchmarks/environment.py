"""What a figure was measured on, and the one file format all benchmarks write."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch


def environment(seeds: list[int]) -> dict[str, Any]:
    """Machine, versions, commit, seeds and threads, as JSON values.

    Args:
        seeds: every seed the figures depend on.
    """
    return {
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--", "dppo", "benchmarks/*.py")
        ),
        "seeds": seeds,
        "threads": torch.get_num_threads(),
    }


def write(path: str | Path, rows: list[dict[str, Any]], seeds: list[int]) -> None:
    """Write ``{"rows": [...], "environment": {...}}`` to ``path``.

    Args:
        path: JSON file; folders are made as needed.
        rows: flat records, one per figure.
        seeds: every seed the figures depend on.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows, "environment": environment(seeds)}
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _processor() -> str:
    """The processor's name where the system tells, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Output of a git command in this repository, or None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent.parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
