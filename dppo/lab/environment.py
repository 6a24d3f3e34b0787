"""Description of the machine, for measurements."""

import importlib.metadata
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dppo.lab.commit import commit


def environment(**facts: Any) -> dict[str, Any]:
    """Machine, versions and commit as JSON values, with further ``facts`` of a measurement."""
    versions: dict[str, str | None] = dict.fromkeys(("dppo", "torch", "numpy", "transformers", "trl", "accelerate"))
    for name in versions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    models = (line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    return {
        "processor": next(models, platform.processor()),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": versions,
        "commit": commit(),
        **facts,
    }
