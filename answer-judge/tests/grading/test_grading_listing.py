"""A text that names several answers earns nothing, and a letter is a letter: properties of golds of every kind."""

import json
import string
from itertools import permutations
from pathlib import Path

import pytest

from answer_judge.grading.judge import judge

FOUND = json.loads(Path(__file__).with_name("listing.json").read_text())
GOLDS, JOINTS = FOUND["golds"], FOUND["joints"]


def right(answer, gold):
    return judge({"answer": answer, "gold": gold}) == "right"


@pytest.mark.parametrize("kind", GOLDS)
def test_a_text_that_names_several_answers_is_never_right(kind):
    accepted = []
    for gold, other in permutations(GOLDS[kind], 2):
        for joint in () if right(gold, other) or right(other, gold) else JOINTS:
            texts = (f"{gold}{joint}{other}", f"{other}{joint}{gold}")
            accepted += [(text, gold) for text in texts if right(text, gold) and not is_one_answer(kind, joint)]
    assert accepted == []


def is_one_answer(kind, joint):
    """A union that has one value."""
    return joint == r" \cup " and kind in ("interval", "set")  # of which one may hold the other


@pytest.mark.parametrize("form", ["({})", r"\text{{{}}}", "{}", r"\mathbf{{({})}}"])
@pytest.mark.parametrize("joint", [" ", "", ", ", " and "])
def test_all_options_together_are_no_option(form, joint):
    listed = joint.join(form.format(each) for each in "ABCDE")
    for letter in "ABCDE":
        assert not right(listed, letter) and not right(f"{listed} 3", letter) and not right(f"{listed} 3", "3")
        assert right(form.format(letter), letter)


@pytest.mark.parametrize("pairs", ["relations", "formulas"])
def test_any_letter_but_e_and_i_may_stand_in_a_formula(pairs):
    for answer, gold, verdict in FOUND[pairs]:
        letters = set(string.ascii_lowercase) - set("ei")
        found = {right(answer.replace("@", letter), gold.replace("@", letter)) for letter in letters}
        assert found == {verdict}, answer
