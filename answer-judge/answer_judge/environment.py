"""The machine that an evaluation ran on."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("answer-judge", "torch", "numpy", "transformers", "vllm", "math-verify", "sympy")


def environment(**facts: Any) -> dict[str, Any]:
    """Machine and versions as JSON values, with what else belongs to the measurement, such as the batch size."""
    torch = sys.modules.get("torch")  # nothing here needs it; an engine that does has loaded it
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: installed.get(name) for name in PACKAGES},
        **facts,
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
