"""What a figure was measured on: machine, versions, commit. Every results file carries this record."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("dppo", "torch", "numpy", "transformers", "trl", "accelerate")


def environment(**facts: Any) -> dict[str, Any]:
    """Machine, versions and commit as JSON values.

    Args:
        **facts: what else belongs to the measurement, such as ``seeds`` or the command.
    """
    cuda = torch.cuda.is_available()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        **facts,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())


def _commit() -> str | None:
    """The commit this code is checked out at, with ``+`` for uncommitted changes; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
