"""The records of the benchmarks, and sets of one's own."""

import json

import pytest
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation import Benchmark, choose, load_set, parse_benchmark
from answer_judge.problems import load_problems


def test_description_of_a_file_and_those_that_do_not_read():
    record = parse_benchmark("mine=C:/x.jsonl:problem=question:answer=target:rule=minerva_math")
    assert record.path == "C:/x.jsonl" and record.rule == "minerva_math"
    assert record.columns == {"problem": "question", "answer": "target"}
    record = parse_benchmark("mine=x.jsonl:answer=solution:extract=boxed")
    assert (record.path, record.rule, record.extract) == ("x.jsonl", None, "boxed")
    for text, named in (
        ("mine", "name=path"),
        ("a b=x.jsonl", "name=path"),
        ("mine=x.jsonl:question=problem", "'question'"),
        ("mine=x.jsonl:problem=", "'problem'"),
        ("mine=x.jsonl:rule=best", "rule=best"),
        ("mine=x.jsonl:extract=last", "extract=last"),
    ):
        with refused(ConfigError, named):
            parse_benchmark(text)


def test_choice_and_what_cannot_be_chosen(tmp_path):
    (tmp_path / "math500.jsonl").write_text("")
    (tmp_path / "gsm8k.jsonl.gz").write_text("")
    assert choose(["aime24"], [], folder=None)[0].path is None
    chosen = choose(["math500", "gsm8k"], ["mine=x.jsonl"], folder=str(tmp_path), template="Q: {problem}")
    assert [(record.name, record.path, record.template) for record in chosen] == [
        ("math500", str(tmp_path / "math500.jsonl"), "Q: {problem}"),
        ("gsm8k", str(tmp_path / "gsm8k.jsonl.gz"), "Q: {problem}"),
        ("mine", "x.jsonl", "Q: {problem}"),
    ]
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
