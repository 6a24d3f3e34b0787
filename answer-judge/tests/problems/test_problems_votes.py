"""Majority votes as a reward of TRL's signature, and as a loop that samples until they are settled."""

from collections import Counter

import numpy as np
import pytest
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading.vote import Stopping, majority
from answer_judge.problems import (
    accuracy_reward,
    majority_vote_reward,
    required_columns,
    same_answers,
    vote_until_settled,
)
from answer_judge.problems.votes import group_sizes_of
from judge_benchmarks.votes import estimand

TEXTS = [r"\boxed{0.5}", "no idea", r"\boxed{2}", r"so \boxed{\frac{1}{2}}"]


def test_answers_that_are_the_same_vote_together(verifier):
    reward = majority_vote_reward(verifier=verifier)
    assert reward.__name__ == "majority_vote_reward" and required_columns(reward) == ()
    assert reward(prompts=["q"] * 4, completions=TEXTS) == [1.0, 0.0, 0.0, 1.0]
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert reward([[{"role": "user", "content": "q"}]] * 4, messages) == [1.0, 0.0, 0.0, 1.0]
    assert reward(["q"] * 3, ["", "no idea", [{"role": "assistant", "content": None}]]) == [0.0] * 3
    assert reward([], []) == []


def test_no_gold_answer_is_read(verifier):
    """Whatever stands in the column: a reward that looked there, as ``accuracy_reward`` does, would differ."""
    vote, golds = majority_vote_reward(verifier=verifier), (["2"] * 4, ["0.5"] * 4)
    assert vote(["q"] * 4, TEXTS, answer=golds[0]) == vote(["q"] * 4, TEXTS, answer=golds[1]) == [1.0, 0.0, 0.0, 1.0]
    accuracy = accuracy_reward(verifier=verifier)
    assert accuracy(["q"] * 4, TEXTS, answer=golds[0]) != accuracy(["q"] * 4, TEXTS, answer=golds[1])


PROMPTS = ["a"] * 2 + ["b"] * 4 + ["a"] * 2
NUMBERS = ["1", "2", "3", "3", "4", "4", "2", "1"]


def by_value(prompts, answers):
    """Wrong: all completions of equal prompts vote together, wherever they stand."""
    groups = {prompt: [a for p, a in zip(prompts, answers, strict=True) if p == prompt] for prompt in prompts}
    winners = {prompt: majority(group).winner for prompt, group in groups.items()}
    return [float(a == winners[p]) for p, a in zip(prompts, answers, strict=True)]


def test_groups_are_runs_of_equal_prompts(verifier):
    texts = [rf"\boxed{{{number}}}" for number in NUMBERS]
    runs = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert majority_vote_reward(verifier=verifier)(PROMPTS, texts) == runs
    assert majority_vote_reward(votes=2, verifier=verifier)(PROMPTS, texts) == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert by_value(PROMPTS, NUMBERS) != runs


def test_a_group_that_is_not_whole_is_an_error(verifier):
    assert group_sizes_of(PROMPTS, None) == [2, 4, 2] and group_sizes_of(PROMPTS, 2) == [2] * 4
    with refused(DataError, "2 completions", "4"):
        majority_vote_reward(votes=4, verifier=verifier)(PROMPTS, [""] * 8)
    with refused(DataError, "1 prompts", "2 completions"):
        majority_vote_reward(verifier=verifier)(["a"], ["", ""])
    with refused(ConfigError, "votes=1"):
        majority_vote_reward(votes=1)


def test_what_is_logged(verifier):
    metrics, tables = {}, {}
    prompts = ["a"] * 4 + ["b"] * 2 + ["c"] * 2
    texts = [*TEXTS, r"\boxed{1}", r"\boxed{2}", "", ""]
    logs = {"log_metric": metrics.__setitem__, "log_extra": tables.__setitem__}
    majority_vote_reward(verifier=verifier)(prompts, texts, **logs)
    assert metrics == {"vote/agreement": 3 / 8, "vote/no_answer": 3 / 8, "vote/ties": pytest.approx(1 / 3)}
    assert tables == {"vote": ["0.5"] * 4 + ["1"] * 2 + [""] * 2}


def test_which_answers_are_the_same(verifier):
    same = same_answers(verifier)
    assert same([("0.5", r"\frac{1}{2}"), ("3", "4"), ("x+1", "1+x")]) == [True, False, True]
    # right as an answer to 0.2%, and 0.2% is wrong as an answer to it: one way alone, they are not the same
    one_way = [verifier.verify(rf"\boxed{{{a}}}", b).value for a, b in (("0.2", r"0.2\%"), (r"0.2\%", "0.2"))]
    assert one_way == [1.0, 0.0] and same([("0.2", r"0.2\%"), (r"0.2\%", "0.2")]) == [False, False]
    assert same([("a}b", "a"), ("1" * 1200, "1" * 1200 + ".0"), ("{", "}")]) == [False, False, False]
    assert same_answers(verifier, benchmark="minerva_math")([("3.80", "3.81")]) == [True] != same([("3.80", "3.81")])


def sampled(prob, seed=0):
    """Answers drawn one by one, and the list of what was asked for."""
    rng, asked = np.random.default_rng(seed), []

    def sample_more(prompts):
        asked.append(prompts)
        drawn = rng.choice(len(prob) + 1, len(prompts), p=[*prob, 1 - sum(prob)])
        return [None if answer == len(prob) else int(answer) for answer in drawn]

    return sample_more, asked


def test_groups_are_sampled_until_they_are_settled():
    script = {0: ["5"] * 4, 1: ["5", "7", None, "7", "5", "5", "5"], 2: [None] * 6}
    places, asked = Counter(), []

    def sample_more(prompts):
        asked.append(prompts)
        answers = [
            script[prompt][places[prompt] + prompts[:place].count(prompt)] for place, prompt in enumerate(prompts)
        ]
        places.update(prompts)
        return answers

    rule = Stopping(confidence=0.7, vote_odds=3.0, fewest=2, most=6, at_once=2)
    settled = vote_until_settled(3, sample_more, rule)
    assert rule.lead == 1
    assert asked == [[0, 0, 1, 1, 2, 2], [1, 1, 2, 2], [2, 2]] and settled.rounds == 3
    assert settled.prompts == (0, 0, 1, 1, 2, 2, 1, 1, 2, 2, 2, 2)
    assert settled.rewards == (1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0)
    assert [vote.silent for vote in settled.votes] == [0, 1, 6] and settled.votes[2].winner is None


@pytest.mark.parametrize("prob", [(0.5, 0.3, 0.2), (0.4, 0.3)], ids=str)
def test_what_is_sampled_is_what_is_enumerated(prob):
    """Means over 3,000 prompts lie within 4 standard errors of the exact ones; the fixed vote's do not."""
    rule, prompts = Stopping(confidence=0.9, fewest=3, most=9, at_once=2), 3000
    settled = vote_until_settled(prompts, sampled(prob)[0], rule)
    exact, fixed = estimand(prob, rule), estimand(prob, Stopping(fewest=9, most=9))
    size = np.bincount(settled.prompts)
    agreement = np.array([vote.agreement for vote in settled.votes])

    def errors(found, expected):
        return abs(found.mean() - expected) / (found.std() / prompts**0.5)

    assert errors(size, exact.drawn) < 4 and errors(agreement, exact.agreement) < 4
    assert errors(agreement, fixed.agreement) > 6


def test_answers_in_text_are_compared_by_the_verifier(verifier):
    rule = Stopping(confidence=0.7, vote_odds=3.0, fewest=4, most=4)
    sample_more = lambda prompts: ["0.5", "2", r"\frac{1}{2}", "2"]  # noqa: E731
    settled = vote_until_settled(1, sample_more, rule, same=same_answers(verifier))
    assert settled.rewards == (1.0, 0.0, 1.0, 0.0)
    assert vote_until_settled(1, sample_more, rule).rewards == (0.0, 1.0, 0.0, 1.0)  # wrong: spellings split the votes


def test_what_cannot_be_sampled():
    with refused(ConfigError, "prompts=0"):
        vote_until_settled(0, lambda prompts: [], Stopping())
    with refused(DataError, "sample_more", "8 prompts"):
        vote_until_settled(2, lambda prompts: ["5"], Stopping())
