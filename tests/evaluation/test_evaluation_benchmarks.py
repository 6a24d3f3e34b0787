"""The records of the benchmarks, and sets of one's own."""

import pytest

from dppo.data import RULES
from dppo.errors import ConfigError
from dppo.evaluation import BENCHMARKS, Benchmark, choose, parse_benchmark

SIZES = {"gsm8k": 1319, "math500": 500, "aime24": 30, "amc23": 40, "minerva_math": 272, "olympiadbench": 675}


def test_every_record_is_complete():
    assert {name: record.problems for name, record in BENCHMARKS.items()} == SIZES
    for record in BENCHMARKS.values():
        assert record.hub and record.file and record.licence and record.correct and record.samples >= 1
        assert len(record.content or "") == 64
        assert record.rule in RULES
        assert "\\boxed{}" in record.template and record.prompt("1 + 1 = {x}").startswith("1 + 1 = {x}\n")


def test_description_of_a_file():
    record = parse_benchmark("mine=data/x.jsonl")
    assert (record.name, record.path, record.rule, record.content) == ("mine", "data/x.jsonl", None, None)
    record = parse_benchmark("mine=C:/x.jsonl:problem=question:answer=target:rule=minerva_math")
    assert record.path == "C:/x.jsonl" and record.rule == "minerva_math"
    assert record.fields["problem"] == ("question",) and record.fields["answer"] == ("target",)
    assert record.fields["id"] == ("id", "unique_id")


def test_a_standard_set_from_a_file_of_its_own():
    record = parse_benchmark("math500=elsewhere.jsonl")
    assert record.content == BENCHMARKS["math500"].content and record.path == "elsewhere.jsonl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine", "expected name=path"),
        ("=x.jsonl", "expected name=path"),
        ("mine=", "expected name=path"),
        ("a b=x.jsonl", "expected name=path"),
        ("mine=x.jsonl:question=problem", "'question' is not one of problem, answer"),
        ("mine=x.jsonl:problem=", "'problem' has no value"),
        ("mine=x.jsonl:rule=best", "rule=best is not one of default, gsm8k"),
    ],
)
def test_descriptions_that_do_not_read(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_benchmark(text)


def test_choice(tmp_path):
    (tmp_path / "math500.jsonl").write_text("")
    (tmp_path / "gsm8k.jsonl.gz").write_text("")
    chosen = choose(["math500", "gsm8k"], ["mine=x.jsonl"], folder=str(tmp_path), template="Q: {problem}")
    assert [record.name for record in chosen] == ["math500", "gsm8k", "mine"]
    assert chosen[0].path == str(tmp_path / "math500.jsonl") and chosen[1].path == str(tmp_path / "gsm8k.jsonl.gz")
    assert {record.template for record in chosen} == {"Q: {problem}"}
    assert choose(["aime24"], [], folder=None)[0].path is None


@pytest.mark.parametrize(
    ("names", "own", "message"),
    [
        (["math5000"], [], "benchmark 'math5000' is not one of gsm8k, math500"),
        ([], [], "no benchmark is named"),
        (["math500"], ["math500=x.jsonl"], "math500 is named twice"),
        (["aime24"], [], "has no aime24.jsonl for aime24. Name the file: --benchmark aime24=FILE"),
    ],
)
def test_choices_that_cannot_be(tmp_path, names, own, message):
    (tmp_path / "math500.jsonl").write_text("")
    with pytest.raises(ConfigError, match=message):
        choose(names, own, folder=str(tmp_path))


def test_missing_folder(tmp_path):
    with pytest.raises(ConfigError, match="there is no such folder"):
        choose(["math500"], [], folder=str(tmp_path / "no"))


def test_template_without_a_place_for_the_problem():
    with pytest.raises(ConfigError, match="does not say where the problem goes"):
        Benchmark(name="mine", template="Solve it.")
