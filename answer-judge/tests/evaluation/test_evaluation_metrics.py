"""Estimates against enumeration and golden numbers."""

from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation.metrics import LONGEST_VOTE, default_ks, maj_at_k, pass_at_k, voting_form


def some_right(samples, right, k):
    """pass@k by looking at every subset."""
    subsets = list(combinations([i < right for i in range(samples)], k))
    return sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for samples in range(1, 8):
        for right in range(samples + 1):
            for k in range(1, samples + 1):
                assert pass_at_k(samples, right, k) == pytest.approx(some_right(samples, right, k), abs=1e-15)
    assert pass_at_k(2000, 3, 1000) == pytest.approx(1 - (1000 * 999 * 998) / (2000 * 1999 * 1998))
    plug_in = 1 - (1 - 2 / 5) ** 3  # the wrong twin
    assert abs(plug_in - some_right(5, 2, 3)) > 0.1


def maj(text, k=None):
    """maj@k of votes written as letters: R is right, . is no answer."""
    votes = [None if c == "." else c for c in text]
    return maj_at_k(votes, [c == "R" for c in text], k or len(text))


def test_majority_golden_numbers():
    assert maj("RRaabb") == pytest.approx(1 / 3) and maj("R...") == 1.0  # a tie is a lot; who has no answer votes not
    assert maj("RaaRRb", 3) == 0.5 and maj("RaRRa", 2) == 0.75  # in blocks; what is left over does not count
    assert maj_at_k(["1/2", "0.5", "2", "2"], [True, True, False, False], 4) == 0.5  # right ones vote together


@given(st.text("Rab.", min_size=1, max_size=6))
def test_majority_is_the_chance_of_a_lot_among_the_front(text):
    counts = Counter(c for c in text if c != ".")
    front = [c for c in counts if counts[c] == max(counts.values())]
    assert maj(text) == pytest.approx(float(Fraction("R" in front, len(front) or 1)))


def test_what_no_samples_can_estimate():
    for samples, right, k in ((4, 2, 5), (4, 2, 0), (4, 5, 2), (0, 0, 1)):
        with refused(ConfigError, f"pass@{k}", samples):
            pass_at_k(samples, right, k)
    with refused(ConfigError, "maj@3", "2 samples"):
        maj("Ra", 3)
    assert default_ks(1) == (1,) and default_ks(16) == (1, 2, 4, 8, 16) and default_ks(12) == (1, 2, 4, 8, 12)


@pytest.mark.parametrize(
    "alike",
    [
        ("1/2", "0.5", ".50", r"\frac{1}{2}", r"\dfrac{2}{4}", "$0.5$", "+1/2"),
        ("1200", "1,200", "1200.", "1{,}200", r"1,\!200", " 1200.00 "),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", r"$(3,\,\tfrac{\pi}{2})$."),
    ],
)
def test_answers_that_are_the_same_vote_alike(alike):
    assert len({voting_form(text) for text in alike}) == 1


def test_other_answers_vote_otherwise_and_long_ones_by_hash():
    texts = ["1", "-1", "10", "0.1", "1,2", "12", "x", "X", r"\frac{1}{0}", "1/0", "1.2.3", r"\sqrt{8}"]
    texts += ["10^{5000}", "1e9999", "1e-9999"]  # more digits than Python writes
    texts += ["x" * 100_000, "x" * 100_001, "9" * 100_000, "\ud800" * 300]
    votes = [voting_form(text) for text in texts]
    assert len(set(votes)) == len(votes) and max(map(len, votes)) <= LONGEST_VOTE
