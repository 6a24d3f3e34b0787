"""Ways in which models and sets of problems write answers, right ones and near misses, from the text on."""

import pytest

from answer_judge.errors import DataError
from answer_judge.evaluation.problems import load_set
from answer_judge.grading.answers import final_answer, joined_boxes
from answer_judge.grading.judge import judge
from answer_judge.problems.catalogue import Benchmark

WRITTEN = [
    # Unions of half-open intervals: no turned brackets.
    (r"(-\infty,-1]\cup(1/2,5]", r"(-\infty,-1]\cup(\frac12,5]", "right"),
    (r"(-\infty,-1]\cup(1/3,5]", r"(-\infty,-1]\cup(\frac12,5]", "wrong"),
    (r"0\le x<2 \text{ or } x\ge 5", r"[0,2)\cup[5,\infty)", "right"),
    (r"[0,2) \cup [5,\infty)", r"0\le x<2 \text{ or } x\ge 5", "right"),
    (r"]-\infty,-1] \cup ]\frac12,5]", r"(-\infty,-1]\cup(\frac12,5]", "right"),
    # One sign for both in a point.
    ("(0,5),(0,-5)", r"(0,\pm 5)", "right"),
    ("(0,5)", r"(0,\pm 5)", "wrong"),
    (r"(1,\pm 2)", "(1,2),(1,-2)", "right"),
    (r"(\pm1,\pm2)", "(1,2),(-1,-2)", "wrong"),
    # Odd roots of negative numbers are real.
    (r"\sqrt[3]{-27}", "-3", "right"),
    (r"\sqrt[3]{-27}", "3", "wrong"),
    (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1", "right"),
    (r"\sqrt{-4}", "2i", "right"),
    (r"(-8)^{2/3}", "4", "right"),
    (r"\frac{1}{\sqrt[3]{-8}}", r"-\frac12", "right"),
    (r"\sqrt[3]{-16}\cdot\sqrt[3]{-4}", "4", "right"),
    (r"\sqrt[3]{-2}(\sqrt[3]{-2}+1)", "(-2)^{2/3}+(-2)^{1/3}", "right"),
    # A unit behind pi.
    (r"36\pi cm^3", r"36\pi", "right"),
    ("36π square units", r"36\pi", "right"),
    (r"36\pi x", r"36\pi", "wrong"),
    (r"2\pi h", r"2\pi", "wrong"),
    (r"\frac{\pi}{2}+2\pi m", r"\frac{\pi}{2}+2\pi", "wrong"),
    # A region and a single value.
    (r"1<k<2 \text{ or } k=5", r"(1,2)\cup\{5\}", "right"),
    (r"1<k<2 \text{ or } k=4", r"(1,2)\cup\{5\}", "wrong"),
    (r"x>0, y=5", "x>0", "wrong"),
    (r"x<3 \text{ or } y=5", r"(-\infty,3)\cup\{5\}", "wrong"),
    (r"(-\infty,-1]\cup\{0\}", r"k\le -1 \text{ or } k=0", "right"),
]


@pytest.mark.parametrize(("answer", "gold", "wanted"), WRITTEN)
def test_answers_as_they_are_written(answer, gold, wanted):
    assert judge({"answer": answer, "gold": gold, "grading": {}}) == wanted


def test_boxes_that_each_name_their_value_are_one_list():
    assert joined_boxes(r"so $x=\boxed{5}$ or $x=\boxed{6}$.") == "5, 6"
    assert joined_boxes(r"$a=\boxed5$ and then, after a page of text, $b=\boxed6$") is None


def test_a_bullet_is_no_sign():
    assert final_answer("**Final Answer:**\n\n- $5$") == final_answer("Answer:\n\n• 5") == "5"
    assert final_answer("Answer: -5") == final_answer("Answer:\n-5") == "-5"
    assert final_answer("The final answer is:\n- 5") == "- 5", "which is the one thing or the other"


@pytest.mark.parametrize(
    ("row", "named"),
    [('"answer": 5, "tolerance": "1%"', "tolerance"), ('"answer": NaN', "an empty answer")],
)
def test_a_row_that_cannot_be_judged_stops_the_run_before_it_starts(row, named, tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text('{"problem": "2+3?", "answer": 5}\n' + '{"problem": "1+4?", ' + row + "}\n")
    with pytest.raises(DataError, match=r"1 row \(counted from 0: 1\)") as raised:
        load_set(Benchmark(name="mine", path=str(file)))
    assert named in str(raised.value)
