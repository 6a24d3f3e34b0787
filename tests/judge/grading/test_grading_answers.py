"""Finding the answer in a text, against hand-written cases and a slow, obvious implementation."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer_judge.grading.answers import after_hashes, final_answer, joined_boxes, last_boxed, plain_match

FUNCTIONS = {function.__name__: function for function in (last_boxed, final_answer, joined_boxes)}
CASES = [json.loads(line) for line in Path(__file__).with_name("answers_in_texts.jsonl").open(encoding="utf-8")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_answers_in_texts(name):
    cases = [case for case in CASES if case["function"] == name]
    found = {case["text"]: FUNCTIONS[name](case["text"]) for case in cases}
    assert found == {case["text"]: case["answer"] for case in cases} != {}


def test_time_and_memory_are_linear_in_the_text():
    """Contents of nested boxes, and two patterns that could start at every space: quadratic, these take minutes."""
    deep = r"\boxed{" * 40_000 + "5" + "}" * 40_000
    tracemalloc.start()
    assert final_answer(deep) == "5" and joined_boxes(deep) is None
    assert tracemalloc.get_traced_memory()[1] < 100 * len(deep)
    tracemalloc.stop()
    assert final_answer("the answer is 7" + " " * 3900 + "x") == "7" + " " * 3900 + "x"
    assert (final_answer("answer is `" + (" " * 3900 + "answer is `") * 250) or "").strip() in ("", "answer is")
    assert final_answer("the answer is " + "$1$," + " " * 3900) == "1"


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


def test_the_comparison_above_can_fail():
    def first_boxed(text):
        found = re.search(r"\\boxed\{([^{}]+)\}", text)
        return found and found[1]

    text = r"\boxed{1} \boxed{2}"
    assert first_boxed(text) != slow_last_boxed(text) == last_boxed(text)


def test_after_hashes_takes_the_last_and_drops_thousands_commas_only():
    assert after_hashes("#### 1\nno\n#### 1,234,567") == "1234567"
    assert after_hashes("#### (1, 2)") == "(1, 2)"
    assert after_hashes("in #### text") is None


@pytest.mark.parametrize(
    ("answer", "gold", "agree"),
    [
        ("7", "7", True),
        ("007", "7", True),
        ("-0", "0", True),
        ("+7", "7", True),
        ("7", "8", False),
        ("-7", "7", False),
        ("10" * 20, "10" * 20 + "1", None),
        (r"\frac12", r"\frac12", True),
        ("x", "$x$", True),
        ("1,234", "1234", None),
        ("70,110", "70110", None),
        ("7.0", "7", None),
        ("1 2", "12", None),
        ("٣", "3", None),
    ],
)
def test_plain_match(answer, gold, agree):
    assert plain_match(answer, gold) is agree
