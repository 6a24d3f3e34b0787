"""The figures of an evaluation, from its samples file read line by line."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dppo.errors import EvaluationError
from dppo.evaluation.files import LineFile
from dppo.evaluation.metrics import breakdown, default_ks, maj_at_k, pass_at_k
from dppo.evaluation.problems import ProblemSet
from dppo.grading import REASONS
from dppo.rng import Purpose, generator
from dppo.statistics import benchmark_interval, problem_interval

_WRITTEN_AT_ONCE = 256


@dataclass
class Tally:
    """Sums over the samples of a benchmark, and the figures of its finished problems."""

    problems: ProblemSet
    samples: int
    ks: Sequence[int]
    drawn: int = 0
    tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    figures: dict[str, np.ndarray] = field(default_factory=dict)
    """(P,) by name, such as ``pass@1``; NaN for a problem that is not finished."""
    _open: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [*(f"pass@{k}" for k in self.ks), *(f"maj@{k}" for k in self.ks if k > 1)]
        self.figures = {name: np.full(len(self.problems.problems), np.nan) for name in names}
        self._rows = {problem.id: row for row, problem in enumerate(self.problems.problems)}

    def add(self, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """Count one sample; the record of its problem in a problems file, where this was the last of its samples."""
        self.drawn += 1
        self.tokens += line["tokens"]
        self.reasons[line["reason"]] += 1
        self.finishes[line["finish"]] += 1
        kept = self._open.setdefault(line["id"], [])
        kept.append({name: line[name] for name in ("sample", "reason", "vote", "tokens")})
        return self._finished(line["id"]) if len(kept) == self.samples else None

    def _finished(self, id: str) -> dict[str, Any]:
        lines = sorted(self._open.pop(id), key=lambda line: line["sample"])
        problem = self.problems.problems[self._rows[id]]
        right = [line["reason"] == "right" for line in lines]
        votes = [line["vote"] for line in lines]
        figures = {f"pass@{k}": pass_at_k(self.samples, sum(right), k) for k in self.ks}
        figures |= {f"maj@{k}": maj_at_k(votes, right, k) for k in self.ks if k > 1}
        for name, value in figures.items():
            self.figures[name][self._rows[id]] = value
        known = {
            "benchmark": self.problems.benchmark.name,
            "id": id,
            "level": problem.level,
            "subject": problem.subject,
        }
        tokens = sum(line["tokens"] for line in lines) / self.samples
        return {**known, "samples": self.samples, "right": sum(right), "tokens": tokens, **figures}

    def as_json(self, rng: np.random.Generator) -> dict[str, Any]:
        """The benchmark's part of ``results.json``."""
        record, problems = self.problems.benchmark, self.problems.problems
        mean = self.figures["pass@1"]
        return {
            "problems": len(problems),
            "samples": self.samples,
            "standard": self.problems.standard,
            "content": self.problems.content,
            "source": record.hub if record.path is None else Path(record.path).name,
            "licence": record.licence,
            "correct": record.correct,
            "notes": list(self.problems.notes),
            **{name: problem_interval(values, rng).as_json() for name, values in self.figures.items()},
            "mean_tokens": self.tokens / self.drawn,
            "truncated": self.finishes["length"] / self.drawn,
            "no_room": self.finishes["no_room"] / self.drawn,
            "outcomes": {reason: self.reasons[reason] for reason in REASONS},
            "by_level": breakdown([problem.level for problem in problems], mean, rng),
            "by_subject": breakdown([problem.subject for problem in problems], mean, rng),
        }


def summarise(
    sets: Sequence[ProblemSet],
    samples: Mapping[str, int],
    lines: Iterable[Mapping[str, Any]],
    outcomes_path: Path,
    *,
    seed: int,
    ks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Figures by benchmark and their average, and on the way one line per problem in ``outcomes_path``.

    Args:
        sets: the benchmarks, whole.
        samples: per problem, by benchmark.
        lines: the samples, in any order; those of a problem should stand together, or memory grows.
        outcomes_path: file for the problems' own figures.
        seed: for the intervals.
        ks: the k of pass@k, beside 1; powers of two by default.

    Raises:
        EvaluationError: samples are missing, or there is no room for the file.
    """
    tallies = {}
    for problems in sets:
        name = problems.benchmark.name
        chosen = default_ks(samples[name]) if ks is None else tuple(sorted({1, *ks}))
        tallies[name] = Tally(problems, samples[name], chosen)
    unfinished = outcomes_path.with_name(f"{outcomes_path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    finished = (row for line in lines if (row := tallies[line["benchmark"]].add(line)) is not None)
    with LineFile(unfinished) as file:
        while chunk := list(islice(finished, _WRITTEN_AT_ONCE)):
            file.append(chunk)
    for name, tally in tallies.items():
        expected = tally.samples * len(tally.problems.problems)
        if tally.drawn != expected:
            raise EvaluationError(f"{name}: {tally.drawn} of {expected} samples are there: give the same command again")
    unfinished.replace(outcomes_path)
    rng = generator(seed, Purpose.EVALUATION, 1)
    results = {name: tally.as_json(rng) for name, tally in tallies.items()}
    shared = [name for name in next(iter(tallies.values())).figures if all(name in t.figures for t in tallies.values())]
    averages = {
        name: benchmark_interval({b: t.figures[name] for b, t in tallies.items()}, rng).as_json() for name in shared
    }
    return {"benchmarks": results, "average": averages}
