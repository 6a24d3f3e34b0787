"""Problems to train on and to evaluate with, and rewards for answers: what comes in, checked where it comes in."""

from dppo.problems.catalogue import BENCHMARKS, SETS, Benchmark
from dppo.problems.checkers import Checker, checker_reward
from dppo.problems.checks import check_problems, identities
from dppo.problems.guard import guarded
from dppo.problems.judges import Judges, code_tests
from dppo.problems.loading import load_problems
from dppo.problems.rewards import (
    accuracy_reward,
    check_rewards,
    format_reward,
    overlong_penalty,
    required_columns,
)
from dppo.problems.solutions import load_solutions
from dppo.problems.votes import Settled, majority_vote_reward, same_answers, vote_until_settled

__all__ = [
    "BENCHMARKS",
    "SETS",
    "Benchmark",
    "Checker",
    "Judges",
    "Settled",
    "accuracy_reward",
    "check_problems",
    "check_rewards",
    "checker_reward",
    "code_tests",
    "format_reward",
    "guarded",
    "identities",
    "load_problems",
    "load_solutions",
    "majority_vote_reward",
    "overlong_penalty",
    "required_columns",
    "same_answers",
    "vote_until_settled",
]
