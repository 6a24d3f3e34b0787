"""Majorities, classes of answers, and when a vote is settled: with the wrong version of each beside it."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading.vote import Stopping, answer_classes, majority, vote_rewards


def silent_votes(answers):
    """Wrong: what cannot be read is a class like any other, and can win."""
    winner = Counter(answers).most_common(1)[0][0]
    return [float(answer == winner) for answer in answers]


def last_of_a_tie(answers):
    """Wrong: of tied answers the one that appeared last."""
    votes = Counter(answer for answer in answers if answer is not None)
    winner = max(reversed(votes), key=votes.__getitem__, default=None)
    return [float(answer is not None and answer == winner) for answer in answers]


def above_half(answers):
    """Wrong: only an absolute majority wins."""
    winner = majority(answers).winner
    won = answers.count(winner) * 2 > len(answers)
    return [float(won and answer is not None and answer == winner) for answer in answers]


TABLE = [
    (["5", "7", None, "5"], [1.0, 0.0, 0.0, 1.0]),
    ([None, None, None, "5"], [0.0, 0.0, 0.0, 1.0]),  # silent completions are the most, and do not vote
    (["7", "5", "5", "7", "9"], [1.0, 0.0, 0.0, 1.0, 0.0]),  # a tie: 7 appeared first
    (["9", "5", "7", "7", "5"], [0.0, 1.0, 0.0, 0.0, 1.0]),  # first of the tied, not of all
    ([None, None], [0.0, 0.0]),
    ([], []),
    ([3, 3, 4], [1.0, 1.0, 0.0]),
]


def wrong_rows(rewards):
    return [place for place, (answers, expected) in enumerate(TABLE) if answers and rewards(answers) != expected]


def test_the_majority_is_rewarded():
    assert vote_rewards([]) == [] and wrong_rows(vote_rewards) == []


def test_the_table_tells_wrong_votes():
    assert wrong_rows(silent_votes) == [1, 4] and wrong_rows(last_of_a_tie) == [2, 3]
    assert wrong_rows(above_half) == [0, 1, 2, 3]


def test_what_a_vote_says():
    vote = majority(["7", None, "5", "5", "7"])
    assert dict(vote.votes) == {"7": 2, "5": 2} and (vote.winner, vote.tied, vote.silent) == ("7", True, 1)
    assert vote.agreement == 0.4 and majority([None]).agreement == 0.0 and majority([None]).winner is None
    with pytest.raises(DataError, match="must be hashable"):
        majority([["5"]])


def near(pairs):
    """Within 1 of each other: not transitive."""
    return [abs(one - other) <= 1 for one, other in pairs]


def test_classes_are_numbered_as_they_appear_and_have_a_representative():
    assert answer_classes([["7", None, "5", "7"], [], [None]]) == [[0, None, 1, 0], [], [None]]
    assert answer_classes([[1, 2, 3, 2], [2, 1, 3]], near) == [[0, 0, 1, 0], [0, 0, 0]]  # 3 is near 2, which is no head
    asked = []
    answer_classes([[1, 5, 9], [4, 8]], lambda pairs: asked.append(pairs) or [False] * len(pairs))
    assert asked == [[(1, 5), (1, 9), (4, 8)], [(5, 9)], []]  # all prompts at once, and no pair twice


@given(st.lists(st.integers(0, 6), max_size=8))
def test_classes_do_not_depend_on_what_comes_later(answers):
    (whole,) = answer_classes([answers], near)
    for end in range(len(answers)):
        assert answer_classes([answers[:end]], near) == [whole[:end]]


def test_what_is_refused():
    with refused(DataError, "same(pairs)", "2 pairs"):
        answer_classes([[1, 2, 3]], lambda pairs: [False])
    with refused(ConfigError, "confidence=0.5", "vote_odds=1 ", "fewest=9", "at_once"):
        Stopping(confidence=0.5, vote_odds=1.0, fewest=9, most=8, at_once=0)


def test_the_test_is_one_of_the_lead():
    rule = Stopping(confidence=0.95, vote_odds=3.0, fewest=1, most=100)
    assert rule.lead == 3
    # by Bayes: two hypotheses, equal priors, votes of the leader and the runner-up of probability p0 and p1
    p0, p1 = 0.6, 0.2
    for runner_up, enough in ((3, False), (2, True)):
        likelihood = {"leader": p0**5 * p1**runner_up, "runner-up": p0**runner_up * p1**5}
        assert (likelihood["leader"] / sum(likelihood.values()) >= rule.confidence) == enough
    assert rule.more([4, 2], 6) == 1 and rule.more([5, 2], 7) == 0 and rule.more([3], 3) == 0
    # 9 is 0.9 / 0.1 but for rounding: a lead of two is enough
    assert Stopping(confidence=0.9, vote_odds=3.0).lead == 2 and Stopping(confidence=0.51, vote_odds=9.0).lead == 1
    assert Stopping(confidence=0.999, vote_odds=1.001).lead == 6911 and Stopping(confidence=1.0).lead == float("inf")


def test_looks_the_least_and_the_most():
    rule = Stopping(fewest=4, most=9, at_once=3)
    assert rule.more([], 0) == 4 and rule.more([2], 2) == 2  # a lead before the first look counts for nothing
    assert rule.more([2, 2], 4) == 3 and rule.more([4, 3], 7) == 2 and rule.more([4, 4], 9) == 0
    assert rule.more([2, 0], 8) == 0  # one more cannot change the winner
    assert rule.more([], 9) == 0 and rule.more([], 4) == 3  # nobody votes: until the cap
    fixed = Stopping(fewest=5, most=5)
    assert fixed.more([5], 5) == fixed.more([], 5) == 0 and fixed.more([4], 4) == 1


def stopped(rule, answers):
    """Completions after which a rule stops on these answers; None where they are too few."""
    drawn = 0
    while more := rule(answers[:drawn]):
        drawn += more
        if drawn > len(answers):
            return None
    return drawn


def by_counts(answers, rule=Stopping(fewest=2, most=6)):  # noqa: B008 (a frozen value)
    return rule.more(majority(answers).votes.values(), len(answers))


def peeking(answers):
    """Wrong: stops as soon as the right answer leads."""
    return 0 if majority(answers).winner == "5" else by_counts(answers)


def names_that_matter(rule):
    """Sequences of answers on which a rule stops elsewhere when 5 and 7 change names."""
    swap = {"5": "7", "7": "5", None: None}
    return [
        answers
        for answers in product(["5", "7", None], repeat=6)
        if stopped(rule, answers) != stopped(rule, [swap[answer] for answer in answers])
    ]


def test_stopping_never_sees_which_answer_is_right():
    assert names_that_matter(by_counts) == []
    assert len(names_that_matter(peeking)) > 300


def test_completions_that_cannot_matter_are_not_sampled():
    """With confidence 1 the winner is that of the whole vote, on every sequence; one vote less is too early."""
    sure = Stopping(confidence=1.0, fewest=1, most=6)
    hasty = Stopping(confidence=1.0, fewest=1, most=5)
    saved = wrong = 0
    for answers in product(["5", "7", None], repeat=6):
        drawn = stopped(lambda seen: by_counts(seen, sure), answers) or 0
        assert majority(answers[:drawn]).winner == majority(answers).winner
        saved += 6 - drawn
        early = stopped(lambda seen: by_counts(seen, hasty), answers)
        wrong += majority(answers[:early]).winner != majority(answers).winner
    assert saved > 0 and wrong > 0
