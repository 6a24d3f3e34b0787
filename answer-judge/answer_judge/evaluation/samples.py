"""Graded samples of problems, batch by batch."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from answer_judge.evaluation.engines import Engine, Generated, Request
from answer_judge.evaluation.problems import Problem, ProblemSet
from answer_judge.evaluation.sampling import Sampling, sample_seed, text_key


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GradedSample:
    """One graded completion."""

    row: int
    """Place of its problem in the set."""
    sample: int
    """Its number within the problem, from 0."""
    generated: Generated
    reason: str
    """The verdict: a member of ``answer_judge.grading.REASONS``."""

    def as_line(self, benchmark: str, problem: Problem) -> dict[str, Any]:
        """The record of a samples file."""
        return {
            "benchmark": benchmark,
            "id": problem.id,
            "sample": self.sample,
            "reason": self.reason,
            "tokens": self.generated.tokens,
            "finish": self.generated.finish,
            "completion": self.generated.text,
        }


Batch = tuple[list[tuple[int, int]], int]
"""(row, sample) of each that are generated together, and tokens that each may have; 0 if the prompts leave no room."""


def batches_of(prompts: Sequence[Sequence[int]], engine: Engine, sampling: Sampling, samples: int) -> list[Batch]:
    """Batches of prompts of similar length, longest first: a function of the prompts, never of what is drawn already.

    Each has room for its completions in what the engine can read, up to the limit of ``sampling``.
    """
    length_P = np.array(list(map(len, prompts)), dtype=np.int64)
    limit_P = np.full_like(length_P, sampling.max_new_tokens)
    if engine.longest is not None:
        limit_P = np.clip(engine.longest - length_P, 0, sampling.max_new_tokens)
    order = np.lexsort((np.arange(len(length_P)), -length_P, -limit_P)).tolist()
    batches: list[Batch] = []
    for limit, rows in groupby(order, key=lambda row: int(limit_P[row])):
        members = [(row, sample) for row in rows for sample in range(samples)]
        starts = range(0, len(members), engine.batch_size)
        batches += [(members[start : start + engine.batch_size], limit) for start in starts]
    return batches


def graded_samples(
    problems: ProblemSet,
    engine: Engine,
    judge: Any,
    sampling: Sampling,
    *,
    samples: int,
    seed: int,
    done_PG: np.ndarray | None = None,
) -> Iterator[list[GradedSample]]:
    """The samples that are not drawn yet, a batch at a time. While one batch is judged, the next is generated.

    A batch with anything left to draw is generated whole, so that it holds what it would have held without a stop.
    ``judge`` has ``Judges.verify_many``; ``samples`` is G, completions per problem; (P, G) ``done_PG`` is True for
    samples that there are already. ``ConfigError``: text that the tokenizer cannot encode.
    """
    benchmark = problems.benchmark
    done_PG = np.zeros((len(problems.problems), samples), dtype=bool) if done_PG is None else done_PG
    prompts = engine.encode([benchmark.prompt(problem.problem) for problem in problems.problems])
    keys = [text_key(f"{benchmark.name} {problem.id}") for problem in problems.problems]
    with ThreadPoolExecutor(max_workers=1) as other:
        judged: Future[list[GradedSample]] | None = None
        for members, limit in batches_of(prompts, engine, sampling, samples):
            if all(done_PG[member] for member in members):
                continue
            if limit < 1:
                generated = [Generated("", 0, "no_room")] * len(members)
            else:
                seeds = (sample_seed(seed, keys[row], sample) for row, sample in members)
                requests = [Request(prompts[row], seed) for (row, _), seed in zip(members, seeds, strict=True)]
                generated = engine.generate(requests, replace(sampling, max_new_tokens=limit))
            new = [pair for pair in zip(members, generated, strict=True) if not done_PG[pair[0]]]
            ready, judged = judged, other.submit(_judge, problems, judge, new)
            if ready is not None:
                yield ready.result()
        if judged is not None:
            yield judged.result()


def _judge(problems: ProblemSet, judge: Any, new: list[tuple[tuple[int, int], Generated]]) -> list[GradedSample]:
    asked = [problems.problems[row] for (row, _), _ in new]
    verdicts = judge.verify_many(
        [generated.text for _, generated in new],
        [problem.answer for problem in asked],
        benchmark=problems.benchmark.rule,
        details=[problem.details for problem in asked],
    )
    return [
        GradedSample(*member, generated, verdict.reason)
        for (member, generated), verdict in zip(new, verdicts, strict=True)
    ]
