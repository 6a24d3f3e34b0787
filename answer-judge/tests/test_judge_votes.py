"""The example of a reward by votes: groups, ties, equal answers in other spellings."""

import runpy
from pathlib import Path

import pytest
from refusals import refused

from answer_judge.errors import DataError

reward_of = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "votes.py"))["majority_vote_reward"]


@pytest.mark.parametrize(
    ("said", "rewards"),
    [
        (["\\boxed{5}", "\\boxed{5.0}", "no idea", "\\boxed{4}"], [1.0, 1.0, 0.0, 0.0]),
        (["\\boxed{4}", "\\boxed{\\frac{1}{2}}", "\\boxed{0.5}", "\\boxed{4}"], [1.0, 0.0, 0.0, 1.0]),
        (["", "none", "?", "..."], [0.0] * 4),
    ],
)
def test_most_votes_win_and_the_first_of_those_tied(said, rewards, verifier):
    reward = reward_of(4, verifier=verifier)
    both = reward(prompts=["q"] * 8, completions=[*said, "\\boxed{4}", "\\boxed{4}", "", ""])
    assert both == [*rewards, 1.0, 1.0, 0.0, 0.0], "each group has a vote of its own"
    with refused(DataError, "[3]", "a vote has 4"):
        reward(prompts=["q"] * 3, completions=[""] * 3)
