"""A gold answer that a program printed as a double stands for the value that was calculated, and for no other."""

import math
import random
from fractions import Fraction

import pytest

from answer_judge.grading import equality
from answer_judge.grading.judge import judge


def right(answer, gold):
    return judge({"answer": answer, "gold": gold}) == "right"


def calculated():
    rng = random.Random(3)
    for _ in range(40):
        n, top, bottom = rng.randint(2, 999), rng.randint(1, 99), rng.choice((3, 7, 11, 13, 17, 19))
        if math.isqrt(n) ** 2 != n:
            yield rf"\sqrt{{{n}}}", math.sqrt(n)
        yield rf"\ln {n}", math.log(n)
        yield rf"-\frac{{{top}}}{{{bottom}}}", -top / bottom


@pytest.fixture
def digits_alone(monkeypatch):
    """The rule without a double's error: the gold answer is its digits."""
    monkeypatch.setattr(equality, "DOUBLE_ERROR", Fraction(0))


def test_a_printed_double_as_gold_is_the_value_it_was_calculated_for():
    values = list(calculated())
    assert [(exact, value) for exact, value in values if not right(exact, repr(value))] == []
    off = [(exact, value * (1 + sign * 1e-14)) for exact, value in values for sign in (1, -1)]
    off = [(exact, value) for exact, value in off if len(repr(value)) > 16]  # a shorter one may be cut correctly
    assert len(off) > 150 and [(exact, value) for exact, value in off if right(exact, repr(value))] == []


def test_the_test_above_can_fail(digits_alone):
    refused = [exact for exact, value in calculated() if not right(exact, repr(value))]
    assert len(refused) > 20


def test_two_printed_doubles_are_two_numbers():
    root = math.sqrt(2)
    assert not right(repr(math.nextafter(root, 2)), repr(root)) and right(repr(root), repr(root))
    assert not right(repr(root), r"\sqrt{2}")  # as an answer its last digit is wrong: 1.41421356237309504...
    assert right("0.3", repr(0.1 + 0.2)) and not right("0.3", "0.3000000000000009")
