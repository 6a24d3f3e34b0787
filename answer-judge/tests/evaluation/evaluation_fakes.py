"""Engines and judges without a model, and small problem sets: what the tests of evaluations are made of."""

from dataclasses import replace

from answer_judge.evaluation import Benchmark, Engine, Generated, Problem, ProblemSet
from answer_judge.evaluation.sampling import generator
from answer_judge.grading import Verdict


def problem_set(count=6, name="toy", **fields):
    """``count`` problems of different lengths whose answers are 0, 1, ..., 7, 0, ..."""
    found = tuple(Problem(f"{name}/{i}", "x" * (3 + 7 * i % 11), str(i % 8)) for i in range(count))
    return ProblemSet(Benchmark(name=name, template="{problem}", **fields), found, f"content of {name}", ())


def answers(request, sampling):
    """A completion as a function of the request alone: one of ten answers, boxed, or none at all."""
    rng = generator(request.seed)
    value = int(rng.integers(10))
    text = f"so it is \\boxed{{{value}}}" if value < 8 else "no idea"
    length = int(rng.integers(1, 30))
    return Generated(text, min(length, sampling.max_new_tokens), "stop" if length < 25 else "length")


def fake_engine(answer=answers, *, batch_size=4, longest=None, facts=None):
    """An engine that answers request by request and remembers the sizes of its batches. A token is a character."""
    calls = []

    def encode(texts):
        return [[ord(c) for c in text] for text in texts]

    def generate(requests, sampling):
        calls.append(len(requests))
        return [answer(request, sampling) for request in requests]

    generate.__dict__["calls"] = calls
    known = {"longest": longest, "facts": {"model": "fake", **(facts or {})}}
    return Engine(name="fake", encode=encode, generate=generate, batch_size=batch_size, **known)


class StoppedError(Exception):
    """What interrupts an evaluation in the tests."""


def stopping_after(batches, answer=answers, **options):
    """The same engine, interrupted in its batch number ``batches``."""
    engine = fake_engine(answer, **options)
    generate, calls = engine.generate, engine.generate.__dict__["calls"]

    def interrupted(requests, sampling):
        if len(calls) == batches:
            raise StoppedError
        return generate(requests, sampling)

    return replace(engine, generate=interrupted)


class FakeJudge:
    """Right where the gold answer stands in a box, no answer where there is no box."""

    def verify_many(self, completions, answers, *, benchmark=None, details=None):
        return [self._verdict(text, gold) for text, gold in zip(completions, answers, strict=True)]

    def _verdict(self, text, gold):
        if "\\boxed" not in text:
            return Verdict(0.0, "no_answer")
        return Verdict(1.0, "right") if f"{{{gold}}}" in text else Verdict(0.0, "wrong")


def sample_lines(folder):
    """The lines of an evaluation's samples file."""
    return (folder / "samples.jsonl").read_text().splitlines()
