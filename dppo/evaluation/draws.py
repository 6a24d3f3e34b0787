"""Graded samples of problems, batch by batch: what an evaluation and a training run's benchmarks share."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from dppo.evaluation.engines import Engine, Generated, Request
from dppo.evaluation.problems import Problem, ProblemSet
from dppo.evaluation.sampling import Sampling, sample_seed
from dppo.evaluation.votes import vote
from dppo.grading.answers import final_answer, joined_boxes
from dppo.problems.checks import text_key

_ENCODED_AT_ONCE = 1024


class Judge(Protocol):
    """What of ``dppo.grading.Verifier`` an evaluation needs."""

    @property
    def verify_many(self) -> Callable[..., Sequence[Any]]:
        """(completions, gold answers, benchmark=, details=) -> verdicts with a ``reason``."""
        ...


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sample:
    """One graded completion."""

    row: int
    """Place of its problem in the set."""
    sample: int
    """Its number within the problem, from 0."""
    generated: Generated
    reason: str
    """The verdict: a member of ``dppo.grading.REASONS``."""
    vote: str | None
    """``votes.vote`` of its answer, or None where it names none."""

    @property
    def right(self) -> bool:
        """Whether it was judged right."""
        return self.reason == "right"

    def as_line(self, benchmark: str, problem: Problem) -> dict[str, Any]:
        """The record of a samples file."""
        return {
            "benchmark": benchmark,
            "id": problem.id,
            "sample": self.sample,
            "reason": self.reason,
            "vote": self.vote,
            "tokens": self.generated.tokens,
            "finish": self.generated.finish,
            "completion": self.generated.text,
        }


@dataclass(frozen=True)
class Plan:
    """In which order the samples of a set are drawn: a function of its problems, never of what is drawn already."""

    batches: tuple[tuple[tuple[int, int], ...], ...]
    """(row, sample) of each completion of each batch: what may be answered at full length first, long prompts first."""
    limit_P: np.ndarray
    """(P,) tokens the completion of each row may have; 0 where its prompt leaves no room. The same within a batch."""


def plan(problems: ProblemSet, engine: Engine, sampling: Sampling, samples: int) -> Plan:
    """Batches of problems of similar length, each with one limit of new tokens.

    Raises:
        ConfigError: text that the tokenizer cannot encode.
    """
    texts = [problems.benchmark.prompt(problem.problem) for problem in problems.problems]
    starts = range(0, len(texts), _ENCODED_AT_ONCE)
    lengths = [len(ids) for start in starts for ids in engine.encode(texts[start : start + _ENCODED_AT_ONCE])]
    length_P = np.array(lengths, dtype=np.int64)
    limit_P = np.full_like(length_P, sampling.max_new_tokens)
    if engine.longest is not None:
        limit_P = np.clip(engine.longest - length_P, 0, sampling.max_new_tokens)
    order = np.lexsort((np.arange(len(length_P)), -length_P, -limit_P)).tolist()
    batches: list[tuple[tuple[int, int], ...]] = []
    for _, rows in groupby(order, key=lambda row: limit_P[row]):
        members = [(row, sample) for row in rows for sample in range(samples)]
        size = engine.batch_size
        batches += [tuple(members[start : start + size]) for start in range(0, len(members), size)]
    return Plan(tuple(batches), limit_P)


def graded_samples(
    problems: ProblemSet,
    engine: Engine,
    judge: Judge,
    sampling: Sampling,
    *,
    samples: int,
    seed: int,
    done_PS: np.ndarray | None = None,
) -> Iterator[list[Sample]]:
    """The samples that are not drawn yet, a batch at a time. While one batch is judged, the next is generated.

    A batch with anything left to draw is generated whole, so that it holds what it would have held without a stop.

    Args:
        problems: what to ask.
        engine: what answers.
        judge: a verifier.
        sampling: how completions are drawn.
        samples: completions per problem, >= 1.
        seed: of the evaluation, >= 0.
        done_PS: (P, samples) bool, True for samples that there are already.
    """
    order = plan(problems, engine, sampling, samples)
    wanted = [batch for batch in order.batches if done_PS is None or not all(done_PS[member] for member in batch)]
    keys = [text_key(f"{problems.benchmark.name} {problem.id}") for problem in problems.problems]
    with ThreadPoolExecutor(max_workers=1) as other:
        judged: Future[list[Sample]] | None = None
        for members in wanted:
            limit = int(order.limit_P[members[0][0]])
            seeds = [sample_seed(seed, keys[row], sample) for row, sample in members]
            generated = _generate(problems, engine, sampling, members, limit, seeds)
            new = [(m, g) for m, g in zip(members, generated, strict=True) if done_PS is None or not done_PS[m]]
            ready, judged = judged, other.submit(_judge, problems, judge, new)
            if ready is not None:
                yield ready.result()
        if judged is not None:
            yield judged.result()


def _generate(
    problems: ProblemSet,
    engine: Engine,
    sampling: Sampling,
    members: Sequence[tuple[int, int]],
    limit: int,
    seeds: list[int],
) -> list[Generated]:
    """A completion of each member, none where the prompt leaves no room."""
    if limit < 1:
        return [Generated("", 0, "no_room") for _ in members]
    rows = list(dict.fromkeys(row for row, _ in members))
    texts = [problems.benchmark.prompt(problems.problems[row].problem) for row in rows]
    prompts = dict(zip(rows, engine.encode(texts), strict=True))
    requests = [Request(prompts[row], seed) for (row, _), seed in zip(members, seeds, strict=True)]
    return engine.generate(requests, sampling.up_to(limit))


def _judge(problems: ProblemSet, judge: Judge, new: list[tuple[tuple[int, int], Generated]]) -> list[Sample]:
    asked = [problems.problems[row] for (row, _), _ in new]
    verdicts = judge.verify_many(
        [generated.text for _, generated in new],
        [problem.answer for problem in asked],
        benchmark=problems.benchmark.rule,
        details=[problem.details for problem in asked],
    )
    return [
        Sample(*member, generated, verdict.reason, _vote(generated.text, problem))
        for (member, generated), verdict, problem in zip(new, verdicts, asked, strict=True)
    ]


def _vote(text: str, problem: Problem) -> str | None:
    """What a completion votes for: its answer, or where there are several its list of them."""
    several = bool((problem.details or {}).get("is_multiple_answer"))
    answer = (joined_boxes(text) if several else None) or final_answer(text)
    return vote(answer) if answer and answer.strip() else None
