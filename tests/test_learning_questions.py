"""Questions of the chat model as files: the score is reasoning-gym's own, on right, wrong and odd answers."""

import itertools
import json

import pytest

from benchmarks.learning.questions import CONFIG, score, write_questions
from dppo.lab.gym import COLUMN, reasoning_gym_score, reasoning_gym_task
from dppo.lab.runs.parsing import read_file

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: pip install reasoning-gym")
ANSWERS = ("{0}", "It is {0}.", "1{0}", "-{0}", "{0}.0", "+{0}", "0{0}", "{0},000", "{0} or 3", "no idea", "", "{0}{0}")


def test_files_have_the_tasks_questions_and_its_score(tmp_path):
    """The wrong twin counts any number that contains the right one as right."""
    write_questions(tmp_path)
    write_questions(tmp_path)  # again: written anew, not appended to
    config = read_file(CONFIG, example="")
    task = reasoning_gym_task(config["dataset_name"], config["task_arguments"], answer_pattern="number")
    twin_differs = False
    for name, held_out in (("train", False), ("held_out", True)):
        rows = task.rows(held_out=held_out)
        written = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert [row["problem"] for row in written] == [row["problem"] for row in rows]
        for (row, given), answer in itertools.product(zip(rows, written, strict=True), ANSWERS):
            text = answer.format(row["answer"])
            wanted = reasoning_gym_score(text, {COLUMN: row[COLUMN]})
            assert score(text, given) == pytest.approx(wanted), (text, row["answer"])
            twin_differs |= float(str(row["answer"]) in text) != wanted
    assert twin_differs
