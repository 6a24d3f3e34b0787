"""Accuracy on mathematics benchmarks: problems, generation, verdicts, and estimates with intervals.

Engines and the callback are imported by name: ``dppo.evaluation.engines``, ``dppo.evaluation.during_training``.
"""

from dppo.evaluation.compare import PairedResults, compare
from dppo.evaluation.engines import ENGINES, Engine, Generated, ModelSpec, Request, load_engine
from dppo.evaluation.metrics import maj_at_k, pass_at_k
from dppo.evaluation.problems import Problem, ProblemSet, choose, content_hash, load_set, parse_benchmark
from dppo.evaluation.run import Progress, Protocol, evaluate, read_results
from dppo.evaluation.sampling import Sampling
from dppo.problems.catalogue import BENCHMARKS, Benchmark

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
    "Progress",
    "Protocol",
    "Request",
    "Sampling",
    "choose",
    "compare",
    "content_hash",
    "evaluate",
    "load_engine",
    "load_set",
    "maj_at_k",
    "parse_benchmark",
    "pass_at_k",
    "read_results",
]
