"""Worked solutions as prompts and completions: formats, columns, and what a bad file says."""

import json

import pytest
from refusals import refused

from answer_judge.errors import DataError
from answer_judge.grading.answers import last_boxed
from answer_judge.problems import load_solutions

ROWS = [
    {"problem": "48 / 2?", "answer": "24", "solution": "48/2 = <<48/2=24>>24.\n#### 24"},
    {"problem": "half?", "answer": "\\frac{1}{2}", "solution": "It is $\\boxed{\\frac{1}{2}}$."},
]


def written(tmp_path, rows):
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_a_solution_becomes_the_assistants_turn(tmp_path):
    found = load_solutions(written(tmp_path, ROWS))
    assert found.column_names == ["prompt", "completion"]
    assert found[0]["prompt"] == [{"role": "user", "content": "48 / 2?"}]
    assert found[0]["completion"] == [{"role": "assistant", "content": "48/2 = 24.\n\\boxed{24}"}]
    plain = load_solutions(written(tmp_path, ROWS), chat=False, template="Q: {problem}")
    assert plain[1] == {"prompt": "Q: half?", "completion": "It is $\\boxed{\\frac{1}{2}}$."}


def test_what_is_missing_is_named(tmp_path):
    with refused(DataError, "'solution'", "'original_answer'", "solution_column="):
        load_solutions(written(tmp_path, [{"problem": "1?", "answer": "1"}]))
    with refused(DataError, "'solution'", "1 of 2", "0: 1"):
        load_solutions(written(tmp_path, [ROWS[0], {**ROWS[1], "solution": None}]))
    renamed = [{"problem": "1?", "answer": "1", "steps": "so 1"}]
    assert load_solutions(written(tmp_path, renamed), chat=False, solution_column="steps")[0]["completion"] == (
        "so 1\n\\boxed{1}"
    )


@pytest.mark.parametrize(("name", "rows"), [("gsm8k_train", 7473), ("math_train", 11998)])
def test_the_real_solutions_all_end_in_a_boxed_answer(real_data, name, rows):
    found = load_solutions(str(real_data / "train" / f"{name}.jsonl.gz"), chat=False)
    assert len(found) == rows
    assert all(last_boxed(text) is not None and "<<" not in text[:40] for text in found["completion"])
