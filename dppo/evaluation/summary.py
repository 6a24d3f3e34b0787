"""The figures of an evaluation, from its samples file read line by line."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dppo.data import REASONS
from dppo.errors import EvaluationError
from dppo.evaluation.files import LineFile
from dppo.evaluation.metrics import breakdown, default_ks, maj_at_k, pass_at_k
from dppo.evaluation.problems import Problem, ProblemSet
from dppo.rng import Purpose, generator
from dppo.statistics import benchmark_interval, problem_interval

_WRITTEN_AT_ONCE = 256


@dataclass(frozen=True)
class Outcome:
    """What became of one problem."""

    problem: Problem
    samples: int
    right: int
    tokens: float
    """Mean over samples."""
    pass_at: dict[int, float]
    maj_at: dict[int, float]

    def as_line(self, benchmark: str) -> dict[str, Any]:
        """The record of a problems file."""
        return {
            "benchmark": benchmark,
            "id": self.problem.id,
            "level": self.problem.level,
            "subject": self.problem.subject,
            "samples": self.samples,
            "right": self.right,
            "tokens": self.tokens,
            **{f"pass@{k}": value for k, value in self.pass_at.items()},
            **{f"maj@{k}": value for k, value in self.maj_at.items()},
        }


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
    _open: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [*(f"pass@{k}" for k in self.ks), *(f"maj@{k}" for k in self.ks if k > 1)]
        self.figures = {name: np.full(len(self.problems.problems), np.nan) for name in names}
        self._rows = {problem.id: row for row, problem in enumerate(self.problems.problems)}

    def add(self, line: Mapping[str, Any]) -> Outcome | None:
        """Count one sample; the outcome of its problem where this was the last of its samples."""
        self.drawn += 1
        self.tokens += line["tokens"]
        self.reasons[line["reason"]] += 1
        self.finishes[line["finish"]] += 1
        kept = self._open.setdefault(line["id"], [])
        kept.append({name: line[name] for name in ("sample", "reason", "vote", "tokens")})
        if len(kept) < self.samples:
            return None
        outcome = self._outcome(self.problems.problems[self._rows[line["id"]]], self._open.pop(line["id"]))
        for name, value in (
            *((f"pass@{k}", value) for k, value in outcome.pass_at.items()),
            *((f"maj@{k}", value) for k, value in outcome.maj_at.items()),
        ):
            self.figures[name][self._rows[line["id"]]] = value
        return outcome

    def _outcome(self, problem: Problem, lines: list[dict[str, Any]]) -> Outcome:
        lines = sorted(lines, key=lambda line: line["sample"])
        right = [line["reason"] == "right" for line in lines]
        votes = [line["vote"] for line in lines]
        return Outcome(
            problem,
            self.samples,
            sum(right),
            sum(line["tokens"] for line in lines) / self.samples,
            {k: pass_at_k(self.samples, sum(right), k) for k in self.ks},
            {k: maj_at_k(votes, right, k) for k in self.ks if k > 1},
        )

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


def ks_for(samples: int, asked: Sequence[int] | None) -> tuple[int, ...]:
    """The k of pass@k for so many samples: those asked and 1, or the powers of two."""
    return default_ks(samples) if asked is None else tuple(sorted({1, *asked}))


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
        ks: the k of pass@k; powers of two by default.

    Raises:
        EvaluationError: samples are missing, or there is no room for the file.
    """
    tallies = {
        s.benchmark.name: Tally(s, samples[s.benchmark.name], ks_for(samples[s.benchmark.name], ks)) for s in sets
    }
    unfinished = outcomes_path.with_name(f"{outcomes_path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with LineFile(unfinished) as file:
        for chunk in _chunks(_outcome_lines(tallies, lines), _WRITTEN_AT_ONCE):
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


def _outcome_lines(tallies: Mapping[str, Tally], lines: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        outcome = tallies[line["benchmark"]].add(line)
        if outcome is not None:
            yield outcome.as_line(line["benchmark"])


def _chunks(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def read_results(folder: Path) -> dict[str, Any]:
    """What ``results.json`` of an evaluation holds.

    Raises:
        EvaluationError: the folder has no finished evaluation.
    """
    path = folder / "results.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"{folder} has no finished evaluation ({error}): give its dppo eval command again to finish it"
        ) from error
