"""Two evaluations of the same problems, paired: their difference with an interval."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from answer_judge.errors import EvaluationError
from answer_judge.evaluation.run import PROBLEMS, differences, read_results
from answer_judge.evaluation.sampling import STREAM, generator
from answer_judge.files import read_lines
from answer_judge.statistics import Estimate, benchmark_interval

DIFFERENCES = (-1.0, 1.0)
"""The span of a difference of shares."""


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
    """Paired differences of two evaluations."""

    benchmarks: dict[str, Pairing]
    average: Estimate
    """Unweighted mean of the benchmarks' differences."""
    settings: tuple[str, ...]
    """Settings that differ; the model is expected here."""


def compare(before: Path | str, after: Path | str, *, seed: int = 0) -> PairedResults:
    """Paired differences in pass@1 of two folders with finished evaluations, ``after`` minus ``before``.

    Both evaluations are resampled together, so that the difficulty of the problems cancels. ``FileError``: a folder
    without results. ``EvaluationError``: no benchmark in both, or one whose problems are not the same set.
    """
    folders = Path(before), Path(after)
    settings = [read_results(folder)["settings"] for folder in folders]
    asked = [setting["benchmarks"] for setting in settings]
    shared = [name for name in asked[0] if name in asked[1]]
    if not shared:
        raise EvaluationError(
            f"{before} and {after} have no benchmark in common: {', '.join(asked[0])} there, {', '.join(asked[1])} here"
        )
    shares = [_shares(folder) for folder in folders]
    pairings, by_set, rng = {}, {}, generator(seed, STREAM, 2)
    for name in shared:
        contents = [sets[name]["content"] for sets in asked]
        if contents[0] != contents[1]:
            raise EvaluationError(
                f"{name} is not the same set of problems in {before} (content {contents[0][:12]}) and {after} "
                f"({contents[1][:12]}): evaluate both on one file"
            )
        ids = [id for id in shares[0][name] if id in shares[1][name]]
        if not ids:
            raise EvaluationError(f"{before} and {after} have no problem of {name} in common: use equal limits")
        before_P, after_P = (np.array([found[name][id] for id in ids]) for found in shares)
        by_set[name] = after_P - before_P
        better, worse = (int((by_set[name] * sign > 0).sum()) for sign in (1, -1))
        difference = benchmark_interval({name: by_set[name]}, rng, DIFFERENCES)
        pairings[name] = Pairing(len(ids), float(before_P.mean()), float(after_P.mean()), difference, better, worse)
    return PairedResults(pairings, benchmark_interval(by_set, rng, DIFFERENCES), tuple(differences(*settings)))


def _shares(folder: Path) -> dict[str, dict[str, float]]:
    """The share of right samples by benchmark and id."""
    found: dict[str, dict[str, float]] = {}
    for line in read_lines(folder / PROBLEMS, advice="Give its dppo eval command again"):
        found.setdefault(line["benchmark"], {})[line["id"]] = line["right"] / line["samples"]
    return found
