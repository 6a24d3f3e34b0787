"""Problems to train on and to evaluate with, and rewards for answers: what comes in, checked where it comes in."""

from answer_judge.problems.catalogue import BENCHMARKS, SETS, Benchmark
from answer_judge.problems.checkers import Checker, checker_reward
from answer_judge.problems.checks import check_problems
from answer_judge.problems.judges import Judges, code_tests
from answer_judge.problems.loading import load_problems
from answer_judge.problems.rewards import (
    accuracy_reward,
    check_rewards,
    format_reward,
    overlong_penalty,
    required_columns,
)
from answer_judge.problems.solutions import load_solutions
from answer_judge.problems.votes import Settled, majority_vote_reward, same_answers, vote_until_settled

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
    "load_problems",
    "load_solutions",
    "majority_vote_reward",
    "overlong_penalty",
    "required_columns",
    "same_answers",
    "vote_until_settled",
]
