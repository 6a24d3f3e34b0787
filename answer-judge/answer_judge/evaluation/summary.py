"""The figures of an evaluation, from its samples file read line by line."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from answer_judge.errors import ConfigError, EvaluationError
from answer_judge.evaluation.problems import ProblemSet
from answer_judge.evaluation.sampling import STREAM, generator
from answer_judge.files import explaining, replacing
from answer_judge.grading import REASONS
from answer_judge.statistics import benchmark_interval

GO_ON = "what was written before is whole: make room and give the same command to go on"
"""The end of a message about a disk that is full."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is right: unbiased, in [0, 1].

    ``1 - C(n - c, k) / C(n, k)`` with n ``samples`` drawn for the problem, of which c are ``right``: the share of the
    subsets of size k that hold a right one (Chen et al. 2021, arXiv:2107.03374, section 2.1). At k = 1 it is the mean.
    ``ConfigError``: k is not in [1, n], or c not in [0, n].
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ConfigError(f"pass@{k} of {samples} samples, {right} right: k must be in [1, samples]. Try k={samples}")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


class Tally:
    """Sums over the samples of a benchmark, and the figures of its finished problems."""

    def __init__(self, problems: ProblemSet, samples: int, ks: Sequence[int]) -> None:
        self.problems, self.samples = problems, samples
        self.drawn = self.tokens = 0
        self.reasons, self.finishes = Counter[str](), Counter[str]()
        self.figures = {f"pass@{k}": np.full(len(problems.problems), np.nan) for k in ks}
        """(P,) by name, such as ``pass@1``; NaN for a problem that is not finished."""
        self._ks = ks
        self._open: dict[str, Counter[str]] = {}
        self._rows = {problem.id: row for row, problem in enumerate(problems.problems)}

    def add(self, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """Count one sample; the record of its problem in a problems file if this was the last of its samples."""
        self.drawn += 1
        self.tokens += line["tokens"]
        self.reasons[line["reason"]] += 1
        self.finishes[line["finish"]] += 1
        found = self._open.setdefault(line["id"], Counter())
        found.update(samples=1, right=line["reason"] == "right", tokens=line["tokens"])
        if found["samples"] < self.samples:
            return None
        del self._open[line["id"]]
        figures = {f"pass@{k}": pass_at_k(self.samples, found["right"], k) for k in self._ks}
        for name, value in figures.items():
            self.figures[name][self._rows[line["id"]]] = value
        named = {"benchmark": self.problems.benchmark.name, "id": line["id"], **found}
        return {**named, "tokens": found["tokens"] / self.samples, **figures}

    def as_json(self, rng: np.random.Generator) -> dict[str, Any]:
        """The benchmark's part of ``results.json``."""
        record = self.problems.benchmark
        return {
            "problems": len(self.problems.problems),
            "samples": self.samples,
            "standard": self.problems.standard,
            "content": self.problems.content,
            "source": record.hub if record.path is None else Path(record.path).name,
            "notes": list(self.problems.notes),
            **{name: asdict(benchmark_interval({"": values}, rng)) for name, values in self.figures.items()},
            "mean_tokens": self.tokens / self.drawn,
            "truncated": self.finishes["length"] / self.drawn,
            "no_room": self.finishes["no_room"] / self.drawn,
            "outcomes": {reason: self.reasons[reason] for reason in dict.fromkeys((*REASONS, *sorted(self.reasons)))},
        }


def summarise(
    sets: Sequence[ProblemSet],
    samples: Mapping[str, int],
    lines: Iterable[Mapping[str, Any]],
    problems_path: Path,
    *,
    seed: int,
    ks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Figures by benchmark and their average, and on the way one line per problem in ``problems_path``.

    ``samples`` is the number per problem, by benchmark; ``lines`` may come in any order. ``ks`` are the k of pass@k
    besides 1; by default the number of samples. ``EvaluationError``: samples are missing.
    """
    tallies = {}
    for problems in sets:
        name = problems.benchmark.name
        tallies[name] = Tally(problems, samples[name], sorted({1, *((samples[name],) if ks is None else ks)}))
    with explaining(problems_path, GO_ON), replacing(problems_path) as file:
        for line in lines:
            record = tallies[line["benchmark"]].add(line)
            if record is not None:
                file.write(json.dumps(record) + "\n")
        for name, tally in tallies.items():
            expected = tally.samples * len(tally.problems.problems)
            if tally.drawn != expected:
                raise EvaluationError(
                    f"{name}: {tally.drawn} of {expected} samples are there: give the same command again"
                )
    rng = generator(seed, STREAM, 1)
    results = {name: tally.as_json(rng) for name, tally in tallies.items()}
    shared = [name for name in next(iter(tallies.values())).figures if all(name in t.figures for t in tallies.values())]
    averages = {name: benchmark_interval({b: t.figures[name] for b, t in tallies.items()}, rng) for name in shared}
    return {"benchmarks": results, "average": {name: asdict(found) for name, found in averages.items()}}
