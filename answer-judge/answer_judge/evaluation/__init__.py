"""Accuracy on mathematics benchmarks: problems, generation, verdicts, and estimates with intervals.

Engines are imported when they are asked for; the command is ``python -m answer_judge.evaluation``.
"""

from answer_judge.evaluation.compare import PairedResults, compare
from answer_judge.evaluation.engines import ENGINES, Engine, Generated, ModelSpec, Request, load_engine
from answer_judge.evaluation.problems import Problem, ProblemSet, choose, content_hash, load_set, parse_benchmark
from answer_judge.evaluation.run import Protocol, evaluate, read_results
from answer_judge.evaluation.sampling import Sampling
from answer_judge.evaluation.summary import pass_at_k
from answer_judge.problems.catalogue import BENCHMARKS, Benchmark

__all__ = [
    "BENCHMARKS",
    "ENGINES",
    "Benchmark",
    "Engine",
    "Generated",
    "ModelSpec",
    "PairedResults",
    "Problem",
    "ProblemSet",
    "Protocol",
    "Request",
    "Sampling",
    "choose",
    "compare",
    "content_hash",
    "evaluate",
    "load_engine",
    "load_set",
    "parse_benchmark",
    "pass_at_k",
    "read_results",
]
