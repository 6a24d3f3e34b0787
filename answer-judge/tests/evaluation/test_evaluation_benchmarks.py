"""The records of the benchmarks, and sets of one's own."""

import json

import pytest
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation import (
    BENCHMARKS,
    Benchmark,
    choose,
    load_set,
    parse_benchmark,
)
from answer_judge.grading import RULES
from answer_judge.problems import load_problems
from answer_judge.problems.code import FORMATS

SIZES = {"gsm8k": 1319, "math500": 500, "aime24": 30, "amc23": 40, "minerva_math": 272, "olympiadbench": 675}


def test_every_record_is_complete():
    assert {name: BENCHMARKS[name].problems for name in SIZES} == SIZES
    for record in BENCHMARKS.values():
        assert record.hub and record.file and record.samples >= 1
        assert len(record.content or "") == (0 if record.name == "mbpp" else 64)
        assert record.rule in (*RULES, *FORMATS)
        assert ("\\boxed{}" if record.rule in RULES else "```python block") in record.template
        assert record.prompt("1 + 1 = {x}").startswith("1 + 1 = {x}\n")


def test_description_of_a_file():
    record = parse_benchmark("mine=data/x.jsonl")
    assert (record.name, record.path, record.rule, record.content) == ("mine", "data/x.jsonl", None, None)
    record = parse_benchmark("mine=C:/x.jsonl:problem=question:answer=target:rule=minerva_math")
    assert record.path == "C:/x.jsonl" and record.rule == "minerva_math"
    assert record.columns == {"problem": "question", "answer": "target"} and record.extract is None
    assert parse_benchmark("mine=x.jsonl:answer=solution:extract=boxed").extract == "boxed"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("mine", "name=path"),
        ("a b=x.jsonl", "name=path"),
        ("mine=x.jsonl:question=problem", "'question'"),
        ("mine=x.jsonl:problem=", "'problem'"),
        ("mine=x.jsonl:rule=best", "rule=best"),
        ("mine=x.jsonl:extract=last", "extract=last"),
    ],
)
def test_descriptions_that_do_not_read(text, named):
    with refused(ConfigError, named):
        parse_benchmark(text)


def test_choice(tmp_path):
    (tmp_path / "math500.jsonl").write_text("")
    (tmp_path / "gsm8k.jsonl.gz").write_text("")
    chosen = choose(["math500", "gsm8k"], ["mine=x.jsonl"], folder=str(tmp_path), template="Q: {problem}")
    assert [record.name for record in chosen] == ["math500", "gsm8k", "mine"]
    assert chosen[0].path == str(tmp_path / "math500.jsonl") and chosen[1].path == str(tmp_path / "gsm8k.jsonl.gz")
    assert {record.template for record in chosen} == {"Q: {problem}"}
    assert choose(["aime24"], [], folder=None)[0].path is None


PROGRAMS = [{"text": "Write f.", "code": "def f(x): return x", "test_list": ["assert f(1) == 1"], "task_id": 1}]


@pytest.mark.parametrize("template", [None, "Q: {problem}", "{problem} Put it in \\boxed{}."])
@pytest.mark.parametrize("rows", [[{"problem": "1 + 1?", "answer": "2"}], PROGRAMS], ids=["sums", "programs"])
def test_a_file_of_ones_own_is_asked_as_in_training(rows, template, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained = [turns[0]["content"] for turns in load_problems(str(path), template=template)["prompt"]]
    for names, own in (([f"own={path}"], []), ([], [f"own={path}"])):
        found = load_set(choose(names, own, folder=None, template=template)[0])
        assert [found.benchmark.prompt(problem.problem) for problem in found.problems] == trained
        assert found.identity["template"] is not None, "two evaluations can be compared by it"


def test_what_cannot_be_chosen(tmp_path):
    (tmp_path / "math500.jsonl").write_text("")
    for names, own, folder, *named in (
        (["math5000"], [], tmp_path, "'math5000'"),
        ([], [], tmp_path, "no benchmark"),
        (["math500"], ["math500=x.jsonl"], tmp_path, "math500", "twice"),
        (["aime24"], [], tmp_path, "aime24.jsonl", "Name the file: aime24=FILE"),
        (["math500"], [], tmp_path / "no", "no such folder of problems"),
    ):
        with refused(ConfigError, *named):
            choose(names, own, folder=str(folder))
    for field, value in (("template", "Solve it."), ("rule", "best"), ("columns", {"question": "q"})):
        with refused(ConfigError, field):
            Benchmark(name="mine", path="x.jsonl", **{field: value})
