"""Looking at a text takes time in proportion to it, in every function that sees all of a text.

What is compared is CPU time of the same work on texts of two lengths, eight to one: a linear expression takes eight
times as long, a quadratic one 64 times. No clock is compared with a number of seconds.
"""

import contextlib
import re
import time
import timeit

import pytest

from answer_judge.grading.answers import boxes_beside, final_answer, joined_boxes, plain_match
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.text import tidy
from answer_judge.grading.words import answer_alone, named_options
from answer_judge.problems.code import CodeTests, program_in

FACTOR, TOO_MUCH = 8, 28
"""How much longer the longer text is, and how much longer it may take."""
SHORT, LONG = 4_000, 100_000
MEASURABLE = 0.003
"""Seconds of CPU time below which a ratio says nothing."""


def spent(work, text, times=1):
    """Seconds of CPU time, the shortest of several."""
    return min(timeit.repeat(lambda: work(text), timer=time.process_time, number=1, repeat=times))


def written(attack, size):
    start, unit, end = attack
    return start + unit * (size // len(unit)) + end


def grows(work, attack, size):
    """Whether work on an attack takes more than in proportion to the text, up to a size."""
    short, long = written(attack, size // FACTOR), written(attack, size)
    return all(spent(work, long, n) > max(MEASURABLE, TOO_MUCH * spent(work, short, n)) for n in (1, 3))


def culprits(work, attacks):
    """The attacks on which work grows, first on short texts, then the slowest of them on a long one."""
    attacks = list(attacks)
    found = [attack for attack in attacks if grows(work, attack, SHORT)]
    slowest = max(attacks, key=lambda attack: spent(work, written(attack, SHORT)))
    return found or [attack for attack in (slowest,) if grows(work, attack, LONG)]


READERS = (final_answer, joined_boxes, boxes_beside, tidy, answer_alone, named_options)
READERS += (lambda text: program_in(text, CodeTests("", ("f",), "", "")), lambda text: plain_match(text, "5"))
WHOLE = (
    " ", "1", "\\", "{", "\\text{", "\\mathbf{a}", "\\boxed{1},", "answer is ", "where ", " for all", "(A) ", "```\n",
    "{}", "\\boxed{", "\\boxed{}", "answer: \n", "#### \n", "** ", "answer is $", "</think>",
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_every_function_that_sees_a_whole_text_takes_time_in_proportion_to_it(reader):
    def work(text):
        with contextlib.suppress(Unreadable):
            reader(text)

    assert culprits(work, [("", unit, "@") for unit in WHOLE]) == []


def test_a_quadratic_reader_is_noticed():
    assert culprits(lambda text: re.search("a+b", text), [("", "a", "@")])
