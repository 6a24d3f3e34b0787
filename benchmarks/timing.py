"""How long a call takes, as the entries of a flat record."""

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np


def milliseconds(run: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Median, quartiles and extremes of the wall-clock time of ``run``, after one call that is not counted."""
    run()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    low, median, high = np.percentile(taken, [25, 50, 75]).tolist()
    return {
        "unit": "ms",
        "median": median,
        "quartile_low": low,
        "quartile_high": high,
        "lowest": min(taken),
        "highest": max(taken),
        "repeats": repeats,
    }


def python_peak(run: Callable[[], object]) -> int:
    """Most bytes of Python objects that ``run`` holds at one time."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
