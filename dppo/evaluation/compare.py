"""Two evaluations of the same problems, paired: how much better one is, with an interval, and on which problems."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import EvaluationError
from dppo.evaluation.files import read_lines
from dppo.evaluation.run import PROBLEMS, SETTINGS, differences
from dppo.evaluation.summary import read_results
from dppo.rng import Purpose, generator
from dppo.statistics import Estimate, benchmark_interval, problem_interval

DIFFERENCES = (-1.0, 1.0)
"""The span of a difference of shares."""


@dataclass(frozen=True, slots=True)
class Change:
    """A problem whose share of right samples is not the same."""

    benchmark: str
    id: str
    before: float
    after: float
    samples: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pairing:
    """One benchmark in two evaluations."""

    problems: int
    """In both."""
    before: float
    after: float
    """pass@1 over those problems."""
    difference: Estimate
    better: int
    worse: int
    """Problems with a higher and with a lower share of right samples."""


@dataclass(frozen=True)
class Comparison:
    """What ``dppo eval --compare`` says."""

    benchmarks: dict[str, Pairing]
    average: Estimate
    """Unweighted mean of the benchmarks' differences."""
    changes: tuple[Change, ...]
    """The largest first."""
    settings: tuple[str, ...]
    """Where the two were not asked alike; the model is expected here."""

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def compare(before: Path, after: Path, *, seed: int = 0) -> Comparison:
    """Paired differences in pass@1, ``after`` minus ``before``.

    The interval is over problems: both evaluations are resampled together, so that how difficult the problems happen to
    be cancels. That two runs of one model differ as well, because their samples do, is part of it.

    Args:
        before: folder of a finished evaluation.
        after: folder of another.
        seed: for the intervals.

    Raises:
        EvaluationError: a folder without results, no benchmark in both, or one whose problems are not the same set.
    """
    for folder in (before, after):
        read_results(folder)
    settings = [_settings(folder) for folder in (before, after)]
    shared = [name for name in settings[0]["benchmarks"] if name in settings[1]["benchmarks"]]
    if not shared:
        raise EvaluationError(
            f"{before} and {after} have no benchmark in common: {', '.join(settings[0]['benchmarks'])} there, "
            f"{', '.join(settings[1]['benchmarks'])} here"
        )
    for name in shared:
        contents = [setting["benchmarks"][name]["content"] for setting in settings]
        if contents[0] != contents[1]:
            raise EvaluationError(
                f"{name} is not the same set of problems in {before} (content {contents[0][:12]}) and {after} "
                f"({contents[1][:12]}): evaluate both on one file"
            )
    rows = [_problems(folder) for folder in (before, after)]
    rng = generator(seed, Purpose.EVALUATION, 2)
    pairings, by_set, changes = {}, {}, []
    for name in shared:
        ids = [id for id in rows[0][name] if id in rows[1][name]]
        if not ids:
            raise EvaluationError(f"{before} and {after} have no problem of {name} in common: use equal limits")
        (share_a, share_b) = (np.array([one[name][id][0] for id in ids]) for one in rows)
        by_set[name] = share_b - share_a
        pairings[name] = Pairing(
            len(ids),
            float(share_a.mean()),
            float(share_b.mean()),
            problem_interval(by_set[name], rng, DIFFERENCES),
            int((by_set[name] > 0).sum()),
            int((by_set[name] < 0).sum()),
        )
        counts = [(rows[0][name][id][1], rows[1][name][id][1]) for id in ids]
        pairs = zip(ids, share_a.tolist(), share_b.tolist(), counts, strict=True)
        changes += [Change(name, id, a, b, count) for id, a, b, count in pairs if a != b]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    return Comparison(
        pairings,
        benchmark_interval(by_set, rng, DIFFERENCES),
        tuple(changes),
        tuple(differences(settings[0], settings[1])),
    )


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{folder / SETTINGS} cannot be read: {error}") from error


def _problems(folder: Path) -> dict[str, dict[str, tuple[float, int]]]:
    """By benchmark and id, the share of right samples and how many there are."""
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for line in read_lines(folder / PROBLEMS):
        found.setdefault(line["benchmark"], {})[line["id"]] = line["right"] / line["samples"], line["samples"]
    return found
