"""A text that names several answers earns nothing, and a letter is a letter: properties of golds of every kind."""

import json
import string
from itertools import permutations
from pathlib import Path

import pytest

from answer_judge.grading.judge import judge

FOUND = json.loads(Path(__file__).with_name("listing.json").read_text())


def right(answer, gold):
    return judge({"answer": answer, "gold": gold}) == "right"


@pytest.mark.parametrize("kind", FOUND["golds"])
def test_a_text_that_names_several_answers_is_never_right(kind):
    # A union of intervals or of sets has one value, because one of them may hold the other.
    joints = [joint for joint in FOUND["joints"] if joint != r" \cup " or kind not in ("interval", "set")]
    accepted = []
    for gold, other in permutations(FOUND["golds"][kind], 2):
        for joint in () if right(gold, other) or right(other, gold) else joints:
            texts = (f"{gold}{joint}{other}", f"{other}{joint}{gold}")
            accepted += [(text, gold) for text in texts if right(text, gold)]
    assert accepted == []


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
