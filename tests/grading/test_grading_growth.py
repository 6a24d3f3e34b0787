r"""Looking at a text takes time in proportion to it: every expression, and every function that sees all of a text.

What is compared is CPU time of the same work on texts of two lengths, eight to one: a linear expression takes eight
times as long, a quadratic one 64 times. No clock is compared with a number of seconds.
"""

import importlib
import pkgutil
import re
import time

import pytest

import dppo.grading as grading
from dppo.grading.answers import final_answer, joined_boxes, plain_match
from dppo.grading.judge import without_where
from dppo.grading.options import named_options
from dppo.grading.patterns import EXAMPLES
from dppo.grading.text import Unreadable, tidy
from dppo.grading.words import answer_alone

for module in pkgutil.iter_modules(grading.__path__, f"{grading.__name__}."):
    importlib.import_module(module.name)

FACTOR, TOO_MUCH = 8, 28
"""How much longer the longer text is, and how much longer it may take."""
SIZES = (1_600, 100_000 // FACTOR)
MEASURABLE = 0.004
"""Seconds of CPU time below which a ratio says nothing."""
UNITS = (
    " ", "1", "a", "A", "(", "{", "\\", "1,", "1 ", "a ", "\\{", "{}", "\\text{", "a.", "=", "$", "#", "*", "\n", "\\(",
    "\\quad", "^", ":", "|", "\\\\", "-", ".", "_", ", and ", "[", "]", "1,000", ",", "é", "k\\in", "A,", "&", "\\dot{",
)  # fmt: skip
FIRST = {}
for example in EXAMPLES:
    FIRST.setdefault(example.regex, example)


def spent(work, text):
    """Seconds of CPU time, the shorter of two."""
    taken = []
    for _ in range(2):
        start = time.process_time()
        work(text)
        taken.append(time.process_time() - start)
    return min(taken)


def grows(work, start, unit, end):
    """Whether work on a repeated unit takes more than in proportion to the text, at one of the sizes."""
    for size in SIZES:
        short, long = (start + unit * (length // len(unit)) + end for length in (size, FACTOR * size))
        slow = spent(work, long)
        if slow > MEASURABLE and slow > TOO_MUCH * max(spent(work, short), 1e-6) and spent(work, long) > MEASURABLE:
            return True
    return False


def use(example):
    """What is done with an expression: it is looked for, or held against a whole text where its example is one."""
    if example.replacement is None and example.text == example.result:
        return lambda text: (example.regex.fullmatch(text), example.regex.match(text))
    return lambda text: sum(1 for _ in example.regex.finditer(text))


def attacks(text):
    """Beginnings, repeated pieces and ends."""
    pieces = {text, text[: len(text) // 2], text[len(text) // 2 :], text[:-1]} - {""}
    yield from (("", unit, "@") for unit in (*UNITS, *sorted(pieces)))
    yield from ((text[:-1], unit, "@") for unit in (" ", "1", "a"))


@pytest.mark.parametrize("part", range(8))
def test_every_expression_takes_time_in_proportion_to_the_text(part):
    found = [
        (example.regex.pattern, attack)
        for example in list(FIRST.values())[part::8]
        for attack in attacks(example.text)
        if grows(use(example), *attack)
    ]
    assert found == []


def quietly(function):
    def work(text):
        try:
            function(text)
        except Unreadable:
            pass

    return work


READERS = (final_answer, joined_boxes, tidy, without_where, answer_alone, named_options, lambda text: plain_match(text, "5"))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_function_that_sees_a_whole_text_takes_time_in_proportion_to_it(reader):
    units = (" ", "1", "\\", "{", "\\text{", "\\mathbf{a}", "\\boxed{1},", "answer is ", "where ", " for all", "(A) ", "```\n")
    assert [unit for unit in units if grows(quietly(reader), "", unit, "@")] == []


@pytest.mark.parametrize(
    "slow",
    [
        r"\s*x",  # from every space to the end of the spaces
        r"[\s,;]*(?:\\q?quad)?\s*(?:\\text\s*\{[\s,]*)?where",  # stood in judge: 400 spaces took 27 s
        r"\d+/\d+",
    ],
)
def test_the_check_above_can_fail(slow):
    work = lambda text: sum(1 for _ in re.compile(slow).finditer(text[:1600]))  # noqa: E731
    short, long = (spent(work, unit * (size // FACTOR)) for unit in "1 "[slow[1] != "d" :][:1] for size in (1600, 12800))
    assert long > TOO_MUCH * short
