"""Estimates against enumeration and golden numbers."""

from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation.metrics import breakdown, default_ks, maj_at_k, pass_at_k


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
    assert maj("RRa") == 1.0 and maj("Raa") == 0.0
    assert maj("Ra") == 0.5 and maj("RRaabb") == pytest.approx(1 / 3)  # a tie is decided by lot
    assert maj("R...") == 1.0 and maj("....") == 0.0  # those without an answer do not vote
    assert maj("aabR") == 0.0
    assert maj("RaaRRb", 3) == 0.5  # blocks: Raa is lost, RRb is won
    assert maj("RaRRa", 2) == 0.75  # Ra is a tie, RR is won, the last one is left over
    assert maj("Rab", 1) == pytest.approx(1 / 3)


def test_right_answers_vote_together_however_they_are_spelt():
    assert maj_at_k(["1/2", "0.5", "2", "2"], [True, True, False, False], 4) == 0.5
    assert maj_at_k(["1/2", "0.5", "2", "2"], [False, False, False, False], 4) == 0.0
    assert maj_at_k([None], [True], 1) == 1.0


@given(st.text("Rab.", min_size=1, max_size=6))
def test_majority_is_the_chance_of_a_lot_among_the_front(text):
    counts = Counter(c for c in text if c != ".")
    front = [c for c in counts if counts[c] == max(counts.values())]
    assert maj(text) == pytest.approx(float(Fraction("R" in front, len(front) or 1)))


def test_breakdown_by_label():
    found = breakdown(["2", "1", "2", None], np.array([1.0, 0.0, 0.0, 1.0]), np.random.default_rng(0))
    assert {name: (row["problems"], row["value"]) for name, row in found.items()} == {
        "1": (1, 0.0),
        "2": (2, 0.5),
        "unknown": (1, 1.0),
    }
    assert breakdown([None, None], np.array([1.0, 0.0]), np.random.default_rng(0)) == {}


def test_what_no_samples_can_estimate():
    for samples, right, k in ((4, 2, 5), (4, 2, 0), (4, 5, 2), (0, 0, 1)):
        with refused(ConfigError, f"pass@{k}", samples):
            pass_at_k(samples, right, k)
    with refused(ConfigError, "maj@3", "2 samples"):
        maj("Ra", 3)
    assert default_ks(1) == (1,) and default_ks(16) == (1, 2, 4, 8, 16) and default_ks(12) == (1, 2, 4, 8, 12)
