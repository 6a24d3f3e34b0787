"""Finding the answer in a text, against hand-written cases and a slow, obvious implementation."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import answer_judge.grading.judge  # noqa: F401 (whose parts register their expressions)
from answer_judge.grading.answers import after_hashes, final_answer, joined_boxes, last_boxed, plain_match
from answer_judge.grading.patterns import EXAMPLES

FUNCTIONS = {each.__name__: each for each in (last_boxed, final_answer, joined_boxes, after_hashes, plain_match)}
CASES = [json.loads(line) for line in Path(__file__).with_name("answers_in_texts.jsonl").open(encoding="utf-8")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_answers_in_texts(name):
    cases = [case for case in CASES if case["function"] == name]
    found = [FUNCTIONS[name](*(case[key] for key in ("text", "gold") if key in case)) for case in cases]
    assert found == [case["answer"] for case in cases] != []


def slow_last_boxed(text):
    """For every box from the right, walk to its closing brace."""
    for match in reversed(list(re.finditer(r"\\boxed\{", text))):
        depth = 1
        for position in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                content = text[match.end() : position].strip()
                if content:
                    return content
                break
    return None


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", "1", "x", " "]), max_size=12).map("".join))
def test_last_boxed_agrees_with_the_slow_walk(text):
    assert last_boxed(text) == slow_last_boxed(text)


def test_the_example_beside_each_expression_holds():
    for each in EXAMPLES:
        if each.replacement is not None:
            assert each.regex.sub(each.replacement, each.text) == each.result
        else:  # in the whole text if that is what it names
            find = each.regex.fullmatch if each.text == each.result else each.regex.search
            assert (found := find(each.text)) is not None and found[0] == each.result
    assert len(EXAMPLES) > 100
