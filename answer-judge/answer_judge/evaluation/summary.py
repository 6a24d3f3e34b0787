"""The figures of an evaluation, from its samples file read line by line."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from answer_judge.errors import EvaluationError
from answer_judge.evaluation.metrics import breakdown, default_ks, maj_at_k, pass_at_k
from answer_judge.evaluation.problems import ProblemSet
from answer_judge.evaluation.sampling import STREAM, generator
from answer_judge.files import encoded, explaining, replacing
from answer_judge.grading import REASONS
from answer_judge.statistics import benchmark_interval, problem_interval

GO_ON = "what was written before is whole: make room and give the same command to go on"
"""The end of a message about a disk that is full."""


class Tally:
    """Sums over the samples of a benchmark, and the figures of its finished problems."""

    def __init__(self, problems: ProblemSet, samples: int, ks: Sequence[int]) -> None:
        self.problems, self.samples, self.ks = problems, samples, ks
        self.drawn = self.tokens = 0
        self.reasons, self.finishes = Counter[str](), Counter[str]()
        self._voted = [k for k in ks if k > 1 and problems.benchmark.votes]
        """The k of maj@k: none where completions have no answers to vote with."""
        names = [*(f"pass@{k}" for k in ks), *(f"maj@{k}" for k in self._voted)]
        self.figures = {name: np.full(len(problems.problems), np.nan) for name in names}
        """(P,) by name, such as ``pass@1``; NaN for a problem that is not finished."""
        self._open: dict[str, list[Mapping[str, Any]]] = {}
        self._rows = {problem.id: row for row, problem in enumerate(problems.problems)}

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
        figures |= {f"maj@{k}": maj_at_k(votes, right, k) for k in self._voted}
        for name, value in figures.items():
            self.figures[name][self._rows[id]] = value
        return {
            "benchmark": self.problems.benchmark.name,
            "id": id,
            "level": problem.level,
            "subject": problem.subject,
            "samples": self.samples,
            "right": sum(right),
            "tokens": sum(line["tokens"] for line in lines) / self.samples,
            **figures,
        }

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
            **{name: asdict(problem_interval(values, rng)) for name, values in self.figures.items()},
            "mean_tokens": self.tokens / self.drawn,
            "truncated": self.finishes["length"] / self.drawn,
            "no_room": self.finishes["no_room"] / self.drawn,
            "outcomes": {reason: self.reasons[reason] for reason in dict.fromkeys((*REASONS, *sorted(self.reasons)))},
            "by_level": breakdown([problem.level for problem in problems], mean, rng),
            "by_subject": breakdown([problem.subject for problem in problems], mean, rng),
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
    """Figures by benchmark and their average, and on the way one line per problem in ``problems_path``, at once.

    ``samples`` is the number per problem, by benchmark. Lines may come in any order, but memory grows where a problem's
    lines are far apart. ``ks`` are the k of pass@k, in addition to 1; powers of two by default. ``EvaluationError``:
    samples are missing. ``FileError``: there is no room for the file.
    """
    tallies = {}
    for problems in sets:
        name = problems.benchmark.name
        chosen = default_ks(samples[name]) if ks is None else tuple(sorted({1, *ks}))
        tallies[name] = Tally(problems, samples[name], chosen)
    with explaining(problems_path, GO_ON), replacing(problems_path) as file:
        for line in lines:
            record = tallies[line["benchmark"]].add(line)
            if record is not None:
                file.write(f"{encoded(record)}\n".encode("ascii"))
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
