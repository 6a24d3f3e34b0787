"""Finding the answer in a text, against hand-written cases and a slow, obvious implementation."""

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answer_judge.grading.answers import after_hashes, final_answer, joined_boxes, last_boxed, plain_match


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{\frac{1}{2}} and then \boxed{\sqrt{x^{2}}}", r"\sqrt{x^{2}}"),
        (r"\boxed{x = \boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} but put it in \boxed{}", "1"),
        (r"\boxed{7} and, cut off, \boxed{\frac{1}{", "7"),
        (r"stray } and { braces, \boxed{3}", "3"),
        (r"\boxed {4}", "4"),
        (r"\boxed 42$", "42"),
        (r"\fbox{9}", "9"),
        (r"a line break \\\boxed{6}", "6"),
        ("\\boxed{\n8\n}", "8"),
        (r"I write \boxed notation", None),
        (r"\boxed{ }", None),
        (r"\boxed{open", None),
        ("", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"The answer is 3. No: \boxed{4}", "4"),
        (r"answer is 3, so $\boxed{$4$}$", "4"),
        ("48/2 = <<48/2=24>>24\n#### 1,072", "1072"),
        ("The answer is: **72**.", "72"),
        ("First the answer is 3.\nThe final answer is $\\frac{3}{4}$.", r"\frac{3}{4}"),
        ("Answer: 3.5", "3.5"),
        ("Answer:\n\n12\nbecause", "12"),
        ("we add 3 and 4 to get 7", None),
        ("the answer is", None),
        ("The answer is ...", None),
        ("answers: 3", None),
        ("The answer is $x = 5$ because $2x = 10$.", "x = 5"),
        ("The answer is 5, since 2 + 3 = 5", "5"),
        ("The answer is $5$ cm. It is long.", "$5$ cm"),
        ("the answer is $3$ and $4$, which are both odd.", "$3$ and $4$"),
        (r"The final answer is \(\frac{1}{2}\)", r"\frac{1}{2}"),
        ("The answer is\n\\[\nx+1\n\\]\nas shown", "x+1"),
        ("**Final Answer**\n\n72", "72"),
        ("### Final answer\n$\\pi$", r"\pi"),
        ("**Answer**: (C)", "(C)"),
        ("ANSWER = 12", "12"),
        ("The answer is 7. I hope it is correct.", "7"),
        (r"<think>\boxed{1}? no</think> The answer is 2.", "2"),
        (r"<think>\boxed{1}</think> As said above.", "1"),
        (r"<think>one </think> two </think>\boxed{3}", "3"),
        ("The answer is `12`.", "12"),
        ("The correct option is B.", "B"),
        ("Therefore, the correct choice is (B).", "(B)"),
        ("## Answer\n\n$42$", "42"),
        ("Answer\n42", "42"),
        ("The answers are 3 and 4.", "3 and 4"),
        ("The final answer is therefore $42$.", "42"),
        ("The answer to the problem is 42.", "42"),
        ("The answer should be 42.", "42"),
        ("the answer would be 42 if it were even", None),
        ("#### The answer is 42", "42"),
        ("#### Final Answer\n$42$", "42"),
        ("#### Step 1: add\n#### Step 2\nThe answer is 42.", "42"),
        ("#### 42\nQuestion: 1 + 1?\nAnswer: two", "42"),
        ("#### Tuesday", "Tuesday"),
        ("<think>no</think><answer> 4 </answer>", "4"),
        ("The answer is 4.</s>", "4"),
        ("The answer is 4<|im_end|>", "4"),
        ("The answer is 0.333... Next.", "0.333..."),
        ("The answer is 3.5.", "3.5"),
        ("So:\n```\n42\n```", "42"),
        ("```latex\n\\frac{1}{2}\n```\n", r"\frac{1}{2}"),
        ("The answer is:\n```\n42\n```\nas shown", "42"),
        ("```python\nprint(3)\n```\n```\n3\n```", "3"),
        ("```python\n3\n```", None),
        ("```\n1\n2\n```", None),
        ("```\n42\n```\nor so", None),
        ("```\n5\n```\n6\n```", None),
        ("```\n```", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        (r"\boxed{1}, \boxed{2} and $\boxed{3}$", "1, 2, 3"),
        (r"\boxed{1} \text{ or } \boxed{2}", "1, 2"),
        (r"\boxed{5}$ and $\boxed{x^{2}}", "5, x^{2}"),
        (r"\boxed{1}, \boxed{2}. So: \boxed{3}, \boxed{4}", "3, 4"),
        (r"\boxed{1} no, \boxed{2}", None),
        (r"\boxed{1} \boxed{2}", None),
        (r"\boxed{1}" + " " * 100 + r"or \boxed{2}", None),
        (r"\boxed{x, \boxed{2}}", None),
        (r"\boxed{7}", None),
        ("7", None),
    ],
)
def test_joined_boxes(text, joined):
    assert joined_boxes(text) == joined


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is: \n(A)\n(B)\n(C)\n(D)", "(A), (B), (C), (D)"),
        ("The answer is:\n- A\n- B", "A, B"),
        ("The answer is:\n(A) 3\n(B) 4\n", "(A) 3, (B) 4"),
        ("The answer is:\n-3\n-4", "-3, -4"),
        ("The answer is:\n(A)\n", "(A)"),
        ("So we get\n~~~\n42\n~~~", "42"),
        ("So we get\n~~~\n42\n43\n~~~", None),
        ("The answer is (A).\n(B) is wrong since 2 > 1.", "(A)"),
        ("The answer is:\n-3\n\nThis is below 0.", "-3"),
    ],
)
def test_answers_on_lines_of_their_own_are_one_list(text, answer):
    """The first of them would be right for whoever lists all."""
    assert final_answer(text) == answer
