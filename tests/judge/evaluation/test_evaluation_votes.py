r"""Answers that are the same number vote alike, others do not."""

import pytest

from answer_judge.evaluation.metrics import LONGEST_VOTE, voting_form


@pytest.mark.parametrize(
    "alike",
    [
        ("1/2", "0.5", ".50", r"\frac{1}{2}", r"\dfrac{2}{4}", "$0.5$", "+1/2"),
        ("1200", "1,200", "1200.", "1{,}200", r"1,\!200", " 1200.00 ", "+1200"),
        ("-3", "-3.0", r"-\frac{3}{1}", "-3/1"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", r"(3,\,\tfrac{\pi}{2})", r"$(3,\frac{\pi}{2})$."),
    ],
)
def test_alike(alike):
    assert len({voting_form(text) for text in alike}) == 1


def test_different():
    texts = ["1", "-1", "10", "0.1", "1,2", "12", "x", "X", r"\frac{1}{0}", "1/0", "", " ", "1.2.3", r"\sqrt{8}"]
    votes = [voting_form(text) for text in texts if text.strip()]
    assert len(set(votes)) == len(votes)


def test_long_answers_vote_by_hash_and_quickly():
    assert len(voting_form("x" * 100_000)) <= LONGEST_VOTE and voting_form("x" * 100_000) != voting_form("x" * 100_001)
    assert voting_form("9" * 100_000).startswith("blake2b:")
    assert voting_form("\ud800" * 300).startswith("blake2b:")
