"""Two evaluations of the same problems, paired: how much better one is, with an interval, and on which problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from answer_judge.errors import EvaluationError
from answer_judge.evaluation.run import PROBLEMS, differences, read_results
from answer_judge.evaluation.sampling import STREAM, generator
from answer_judge.files import read_lines
from answer_judge.statistics import Estimate, benchmark_interval, problem_interval

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
class PairedResults:
    """What ``dppo eval --compare`` says."""

    benchmarks: dict[str, Pairing]
    average: Estimate
    """Unweighted mean of the benchmarks' differences."""
    changes: tuple[Change, ...]
    """The largest first."""
    settings: tuple[str, ...]
    """Where the two were not asked alike; the model is expected here."""


def compare(before: Path | str, after: Path | str, *, seed: int = 0) -> PairedResults:
    """Paired differences in pass@1 of two folders with finished evaluations, ``after`` minus ``before``.

    The interval is over problems: both evaluations are resampled together, so that how difficult the problems happen to
    be cancels. That two runs of one model differ as well, because their samples do, is part of it.

    Raises:
        FileError: a folder without results.
        EvaluationError: no benchmark in both, or one whose problems are not the same set.
    """
    before, after = Path(before), Path(after)
    settings = [read_results(folder)["settings"] for folder in (before, after)]
    shared = _shared(before, after, [setting["benchmarks"] for setting in settings])
    results = [_problems(folder) for folder in (before, after)]
    rng = generator(seed, STREAM, 2)
    pairings, by_set, changes = {}, {}, []
    for name in shared:
        ids = [id for id in results[0][name] if id in results[1][name]]
        if not ids:
            raise EvaluationError(f"{before} and {after} have no problem of {name} in common: use equal limits")
        before_P, after_P = (np.array([shares[name][id][0] for id in ids]) for shares in results)
        by_set[name] = after_P - before_P
        better, worse = (int((by_set[name] * sign > 0).sum()) for sign in (1, -1))
        difference = problem_interval(by_set[name], rng, DIFFERENCES)
        pairings[name] = Pairing(len(ids), float(before_P.mean()), float(after_P.mean()), difference, better, worse)
        counts = [(results[0][name][id][1], results[1][name][id][1]) for id in ids]
        pairs = zip(ids, before_P.tolist(), after_P.tolist(), counts, strict=True)
        changes += [Change(name, id, a, b, count) for id, a, b, count in pairs if a != b]
    changes.sort(key=lambda change: -abs(change.after - change.before))
    return PairedResults(
        pairings,
        benchmark_interval(by_set, rng, DIFFERENCES),
        tuple(changes),
        tuple(differences(settings[0], settings[1])),
    )


def _shared(before: Path, after: Path, sets: Sequence[Mapping[str, Any]]) -> list[str]:
    """The benchmarks in both evaluations, whose problems must be the same."""
    shared = [name for name in sets[0] if name in sets[1]]
    if not shared:
        raise EvaluationError(
            f"{before} and {after} have no benchmark in common: {', '.join(sets[0])} there, {', '.join(sets[1])} here"
        )
    for name in shared:
        contents = [asked[name]["content"] for asked in sets]
        if contents[0] != contents[1]:
            raise EvaluationError(
                f"{name} is not the same set of problems in {before} (content {contents[0][:12]}) and {after} "
                f"({contents[1][:12]}): evaluate both on one file"
            )
    return shared


def _problems(folder: Path) -> dict[str, dict[str, tuple[float, int]]]:
    """By benchmark and id, the share of right samples and how many there are."""
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for line in read_lines(folder / PROBLEMS, advice="Give its dppo eval command again"):
        found.setdefault(line["benchmark"], {})[line["id"]] = line["right"] / line["samples"], line["samples"]
    return found
