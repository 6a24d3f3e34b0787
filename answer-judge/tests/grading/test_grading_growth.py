"""Functions that see a whole text take time in proportion to it.

CPU time is compared for two lengths, eight to one: a linear expression takes eight times as long, a quadratic one 64.
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


def repeated(unit, size):
    return unit * (size // len(unit)) + "@"


def grows(work, unit, size):
    """True if work on a repeated unit takes more than in proportion to the text, up to a size."""
    short, long = repeated(unit, size // FACTOR), repeated(unit, size)
    return all(spent(work, long, n) > max(MEASURABLE, TOO_MUCH * spent(work, short, n)) for n in (1, 3))


def culprits(work, units):
    """The units on which work grows, first in short texts, then the slowest of them in a long one."""
    found = [unit for unit in units if grows(work, unit, SHORT)]
    slowest = max(units, key=lambda unit: spent(work, repeated(unit, SHORT)))
    return found or [unit for unit in (slowest,) if grows(work, unit, LONG)]


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

    assert culprits(work, WHOLE) == []


def test_a_quadratic_reader_is_noticed():
    assert culprits(lambda text: re.search("a+b", text), ["a"])
