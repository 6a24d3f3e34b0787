"""Problems to train on and to evaluate with, and rewards for answers: what comes in, checked where it comes in."""

from dppo.problems.catalogue import BENCHMARKS, SETS, Benchmark
from dppo.problems.checks import check_problems, identities
from dppo.problems.guard import guarded
from dppo.problems.loading import load_problems
from dppo.problems.rewards import (
    accuracy_reward,
    check_rewards,
    format_reward,
    overlong_penalty,
    required_columns,
)

__all__ = [
    "BENCHMARKS",
    "SETS",
    "Benchmark",
    "accuracy_reward",
    "check_problems",
    "check_rewards",
    "format_reward",
    "guarded",
    "identities",
    "load_problems",
    "overlong_penalty",
    "required_columns",
]
