"""The machine: what a figure was measured on, and how many threads small work is given."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SMALL = 5_000_000
"""Parameters up to which a model runs on one thread, which is then the fastest, and is copied without a thought."""
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


@contextmanager
def one_thread(model: torch.nn.Module | None = None) -> Iterator[None]:
    """One torch thread while active, for work too small to share: several wait for each other more than they help.

    Args:
        model: what the work is on; threads stay as they are if it has more than ``SMALL`` parameters.
    """
    before = torch.get_num_threads()
    if model is None or sum(parameter.numel() for parameter in model.parameters()) <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
