"""Options, one file format, turns, and medians with their spread, for all benchmarks."""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dppo.files import write_json
from dppo.lab.environment import environment

T = TypeVar("T")
Record = dict[str, Any]
"""Flat: numbers, words and None by name."""


def options(doc: str | None, *, quick: str = "") -> argparse.ArgumentParser:
    """A parser with ``--output``, and ``--quick`` for a benchmark with a small size; its text is the first line."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where to write the figures")
    return parser


def write(path: Path | None, rows: Sequence[Record], seeds: Sequence[int], **more: Record) -> None:
    """Write rows and more to a file, if one is named, with machine, versions, commit and seeds."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"rows": list(rows), **more, "environment": environment(seeds=list(seeds))})


def earlier(path: Path | None) -> Record:
    """Content of a file of earlier measurements; empty if there is no file."""
    return {} if path is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))


def spread(values: ArrayLike, prefix: str = "") -> dict[str, float]:
    """Median and quartiles, as entries of a record whose names begin with ``prefix``."""
    low, median, high = np.percentile(np.asarray(values, dtype=float), [25, 50, 75]).tolist()
    return {f"{prefix}median": median, f"{prefix}quartile_low": low, f"{prefix}quartile_high": high}


def spread_with_ends(values: ArrayLike) -> dict[str, float]:
    """Median, quartiles, lowest and highest value, and their number."""
    found = np.asarray(values, dtype=float)
    return {**spread(found), "lowest": float(found.min()), "highest": float(found.max()), "repeats": len(found)}


def seconds_of(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a call takes."""
    start = clock()
    run()
    return clock() - start


def in_turns(runs: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """Measurements of each run, one after another in each repetition, so that drifts hit all alike."""
    taken: dict[str, list[T]] = {name: [] for name in runs}
    for _, (name, run) in itertools.product(range(repetitions), runs.items()):
        taken[name].append(run())
    return taken
