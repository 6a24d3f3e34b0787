r"""Answers that are the same number vote alike, others do not."""

import pytest

from dppo.evaluation.votes import LONGEST, vote


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
    assert len({vote(text) for text in alike}) == 1


def test_different():
    texts = ["1", "-1", "10", "0.1", "1,2", "12", "x", "X", r"\frac{1}{0}", "1/0", "", " ", "1.2.3", r"\sqrt{8}"]
    votes = [vote(text) for text in texts if text.strip()]
    assert len(set(votes)) == len(votes)


def test_long_answers_vote_by_hash_and_quickly():
    assert len(vote("x" * 100_000)) <= LONGEST and vote("x" * 100_000) != vote("x" * 100_001)
    assert vote("9" * 100_000).startswith("blake2b:")
    assert vote("\ud800" * 300).startswith("blake2b:")
