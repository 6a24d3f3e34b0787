"""What all benchmarks share: options, one file format, timing in turns, medians and spread."""

import argparse
import itertools
import json
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dppo.environment import environment
from dppo.files import write_json

T = TypeVar("T")
Record = dict[str, Any]
"""Flat: numbers, words and None by name."""


def options(doc: str | None, *, quick: str = "") -> argparse.ArgumentParser:
    """A parser with ``--output``, and ``--quick`` where a benchmark has a small size; its text is the first line."""
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
    """What a file has of earlier measurements; nothing where there is none."""
    return {} if path is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))


def beside(path: Path | None, rows: Sequence[Record], name: str) -> list[Record]:
    """Rows of an earlier measurement whose ``name`` is none of these rows', and then these."""
    again = {row[name] for row in rows}
    return [*(row for row in earlier(path).get("rows", []) if row[name] not in again), *rows]


def spread(values: ArrayLike, prefix: str = "") -> dict[str, float]:
    """Median and quartiles, as entries of a record whose names begin with ``prefix``."""
    low, median, high = np.percentile(np.asarray(values, dtype=float), [25, 50, 75]).tolist()
    return {f"{prefix}median": median, f"{prefix}quartile_low": low, f"{prefix}quartile_high": high}


def spread_with_ends(values: ArrayLike) -> dict[str, float]:
    """Median, quartiles, lowest and highest, and of how many."""
    found = np.asarray(values, dtype=float)
    return {**spread(found), "lowest": float(found.min()), "highest": float(found.max()), "repeats": len(found)}


def seconds_of(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long a call takes."""
    start = clock()
    run()
    return clock() - start


def milliseconds(run: Callable[[], object], repeats: int) -> Record:
    """Spread of the wall-clock time of a call, after one that is not counted."""
    run()
    return {"unit": "ms", **spread_with_ends([1e3 * seconds_of(run) for _ in range(repeats)])}


def in_turns(runs: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """What every run measured, all of them one after another in each repetition, so that drifts hit all alike."""
    taken: dict[str, list[T]] = {name: [] for name in runs}
    for _, (name, run) in itertools.product(range(repetitions), runs.items()):
        taken[name].append(run())
    return taken


def python_peak(run: Callable[[], object]) -> int:
    """Most bytes of Python objects that a call holds at one time."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def met(row: Record, *, above: bool = False) -> str:
    """A record's ``bar`` and whether its median is below it, or above; empty without a bar."""
    if row["bar"] is None:
        return ""
    good = row["median"] > row["bar"] if above else row["median"] < row["bar"]
    return f"{row['bar']:g} {'met' if good else 'MISSED'}"
