"""Ways in which models and sets of problems write answers, right ones and near misses, from the text on."""

import pytest

from answer_judge.errors import DataError
from answer_judge.evaluation.problems import load_set
from answer_judge.grading.answers import final_answer, joined_boxes
from answer_judge.grading.judge import judge
from answer_judge.problems.catalogue import Benchmark

RIGHT = [
    (r"(-\infty,-1]\cup(1/2,5]", r"(-\infty,-1]\cup(\frac12,5]"),
    (r"0\le x<2 \text{ or } x\ge 5", r"[0,2)\cup[5,\infty)"),
    (r"[0,2) \cup [5,\infty)", r"0\le x<2 \text{ or } x\ge 5"),
    ("(0,5),(0,-5)", r"(0,\pm 5)"),
    (r"(1,\pm 2)", "(1,2),(1,-2)"),
    (r"\sqrt[3]{-27}", "-3"),  # odd roots of negative numbers are real
    (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"),
    (r"\sqrt{-4}", "2i"),
    (r"(-8)^{2/3}", "4"),
    (r"\frac{1}{\sqrt[3]{-8}}", r"-\frac12"),
    (r"\sqrt[3]{-2}(\sqrt[3]{-2}+1)", "(-2)^{2/3}+(-2)^{1/3}"),
    (r"36\pi cm^3", r"36\pi"),
    ("36π square units", r"36\pi"),
]
WRONG = [
    (r"(-\infty,-1]\cup(1/3,5]", r"(-\infty,-1]\cup(\frac12,5]"),
    ("(0,5)", r"(0,\pm 5)"),
    (r"(\pm1,\pm2)", "(1,2),(-1,-2)"),
    (r"\sqrt[3]{-27}", "3"),
    (r"36\pi x", r"36\pi"),
    (r"2\pi h", r"2\pi"),
    (r"\frac{\pi}{2}+2\pi m", r"\frac{\pi}{2}+2\pi"),
    (r"1<k<2 \text{ or } k=4", r"(1,2)\cup\{5\}"),
    (r"x>0, y=5", "x>0"),
    (r"x<3 \text{ or } y=5", r"(-\infty,3)\cup\{5\}"),
]


def test_answers_as_they_are_written():
    assert [pair for pair in RIGHT if judge({"answer": pair[0], "gold": pair[1]}) != "right"] == []
    assert [pair for pair in WRONG if judge({"answer": pair[0], "gold": pair[1]}) == "right"] == []


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
