"""Problems to train on and to evaluate with, and rewards for answers: what comes in, checked where it comes in."""

from answer_judge.problems.catalogue import BENCHMARKS, SETS, Benchmark
from answer_judge.problems.checkers import Checker, checker_reward
from answer_judge.problems.judges import Judges, code_tests
from answer_judge.problems.loading import load_problems
from answer_judge.problems.rewards import (
    accuracy_reward,
    check_rewards,
    format_reward,
    required_columns,
)

__all__ = [
    "BENCHMARKS",
    "SETS",
    "Benchmark",
    "Checker",
    "Judges",
    "accuracy_reward",
    "check_rewards",
    "checker_reward",
    "code_tests",
    "format_reward",
    "load_problems",
    "required_columns",
]
