r"""Looking at a text takes time in proportion to it: every expression, and every function that sees all of a text.

What is compared is CPU time of the same work on texts of two lengths, eight to one: a linear expression takes eight
times as long, a quadratic one 64 times. No clock is compared with a number of seconds.
"""

import contextlib
import importlib
import pkgutil
import time

import pytest

import answer_judge.grading as grading
from answer_judge.grading.answers import boxes_beside, final_answer, joined_boxes, plain_match
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.patterns import EXAMPLES
from answer_judge.grading.text import tidy
from answer_judge.grading.words import answer_alone, named_options
from answer_judge.problems.code import CodeTests, program_in

for module in pkgutil.iter_modules(grading.__path__, f"{grading.__name__}."):
    importlib.import_module(module.name)

FACTOR, TOO_MUCH = 8, 28
"""How much longer the longer text is, and how much longer it may take."""
SHORT, LONG = 4_000, 100_000
MEASURABLE = 0.003
"""Seconds of CPU time below which a ratio says nothing."""
UNITS = (" ", "1", "a", "A", "(", "{", "\\", "1,", "a ", "\\text{", "$", "\n", "\\quad ", "\\\\", ".", ", and ", "é")
FIRST = {}
for example in EXAMPLES:
    FIRST.setdefault(example.regex, example)


def spent(work, text, times=1):
    """Seconds of CPU time, the shortest of several."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work(text)
        taken.append(time.process_time() - start)
    return min(taken)


def written(attack, size):
    start, unit, end = attack
    return start + unit * (size // len(unit)) + end


def grows(work, attack, size):
    """Whether work on an attack takes more than in proportion to the text, up to a size."""
    short, long = written(attack, size // FACTOR), written(attack, size)
    if spent(work, long) <= MEASURABLE or spent(work, long) <= TOO_MUCH * spent(work, short):
        return False
    slow = spent(work, long, times=3)
    return slow > MEASURABLE and slow > TOO_MUCH * spent(work, short, times=3)


def culprits(work, attacks):
    """The attacks on which work grows, first on short texts, then the slowest of them on a long one."""
    attacks = list(attacks)
    found = [attack for attack in attacks if grows(work, attack, SHORT)]
    slowest = max(attacks, key=lambda attack: spent(work, written(attack, SHORT)))
    return found or [attack for attack in (slowest,) if grows(work, attack, LONG)]


def use(example):
    """What is done with an expression: it is looked for, or held against a whole text where its example is one."""
    if example.replacement is None and example.text == example.result:
        return lambda text: (example.regex.fullmatch(text), example.regex.match(text))
    return lambda text: sum(1 for _ in example.regex.finditer(text))


def attacks(text):
    """Beginnings, repeated pieces and ends."""
    pieces = {text, text[: len(text) // 2], text[len(text) // 2 :]} - {""}
    yield from (("", unit, "@") for unit in (*UNITS, *sorted(pieces)))
    yield text[:-1], " ", "@"


def test_every_expression_takes_time_in_proportion_to_the_text():
    found = {e.regex.pattern: culprits(use(e), attacks(e.text)) for e in FIRST.values()}
    assert {regex: attack for regex, attack in found.items() if attack} == {}


def quietly(function):
    def work(text):
        with contextlib.suppress(Unreadable):
            function(text)

    return work


def program(text):
    return program_in(text, CodeTests("", ("f",), "", ""))


def matched(text):
    return plain_match(text, "5")


CALLERS = (final_answer, joined_boxes, boxes_beside, program, matched)
"""What reads a completion in the caller's process, which no limit ends."""
READERS = (tidy, answer_alone, named_options)
WHOLE = (
    " ", "1", "\\", "{", "\\text{", "\\mathbf{a}", "\\boxed{1},", "answer is ", "where ", " for all", "(A) ", "```\n",
    "{}", "\\boxed{", "\\boxed{}", "answer: \n", "#### \n", "** ", "answer is $", "</think>",
)  # fmt: skip


@pytest.mark.parametrize("reader", [*CALLERS, *READERS], ids=lambda reader: reader.__name__)
def test_every_function_that_sees_a_whole_text_takes_time_in_proportion_to_it(reader):
    assert culprits(quietly(reader), [("", unit, "@") for unit in WHOLE]) == []
