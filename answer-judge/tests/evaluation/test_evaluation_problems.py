"""Problem sets: what is read, what is refused with row numbers, and the hash that tells the standard set."""

import json
from itertools import pairwise

import pytest
from refusals import refused, warned

from answer_judge.errors import ConfigError, DataError
from answer_judge.evaluation import BENCHMARKS, Benchmark, choose, content_hash, load_set, parse_benchmark
from answer_judge.problems import load_problems
from answer_judge.problems.code import FORMATS

ROWS = [{"id": f"a/{i}", "problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(8)]


@pytest.fixture
def written(tmp_path):
    """Writes rows to a file and gives its description as a benchmark."""

    def write(rows, fields=""):
        path = tmp_path / "mine.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return parse_benchmark(f"mine={path}{fields}")

    return write


def test_columns_by_other_names_and_no_id(written):
    rows = [{"question": f"q{i}", "target": i} for i in range(3)]
    found = load_set(written(rows, ":problem=question:answer=target"))
    assert [(p.id, p.problem, p.answer) for p in found.problems] == [(f"mine/{i}", f"q{i}", str(i)) for i in range(3)]
    assert found.notes == () and not found.standard


@pytest.mark.parametrize("prompt", ["1 + 1? Box it.", [{"role": "user", "content": "1 + 1? Box it."}]])
def test_training_and_evaluation_read_the_same_problem(prompt, written, tmp_path):
    with warned("'problem'", ":problem=prompt"):
        asked = load_set(written([{"prompt": prompt, "problem": "1 + 1?", "answer": "2"}])).problems[0].problem
    with warned("'problem' is read"):
        trained = load_problems(str(tmp_path / "mine.jsonl"), chat=False)["prompt"][0]
    assert asked == trained == "1 + 1?"


PUBLISHED = {"is_multiple_answer": False, "unit": "%"}
SAYS = [
    ({"meta": {"unit": "km", "is_multiple_answer": False, "other": 1}}, {"unit": "km", "is_multiple_answer": False}),
    ({"meta": {}}, None),
    ({"is_multiple_answer": True, "unit": None}, {"is_multiple_answer": True}),
    (PUBLISHED | {"error": "1e-1"}, PUBLISHED | {"tolerance": "1e-1"}),
    (PUBLISHED | {"error": "1e-1,1e-2"}, PUBLISHED),  # one for each of several answers: exact
    ({"error": "none found"}, None),
]


@pytest.mark.parametrize(("said", "details"), SAYS)
def test_what_a_problem_says_of_its_answer(said, details, written):
    assert load_set(written([{"problem": "a", "answer": "4.2", **said}])).problems[0].details == details


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({1: {"tolerance": "1%"}}, ("tolerance", "1 row (counted from 0: 1)")),
        ({2: {"answer": None}, 5: {"answer": " $ $ "}}, ("answer", "2 rows", "0: 2, 5")),
        ({3: {"id": "a/1"}}, ("id", "2 rows", "0: 1, 3")),
        ({0: {"problem": ""}, 7: {"answer": ""}}, ("0: 0)", "0: 7)")),
    ],
)
def test_rows_that_cannot_be_graded_are_named(written, change, named):
    with refused(DataError, *named):
        load_set(written([{**row, **change.get(i, {})} for i, row in enumerate(ROWS)]))


def test_columns_files_and_networks_that_are_not_there(written, tmp_path, monkeypatch):
    def refuse(*words, **options):
        raise ConnectionError("no network")

    with refused(DataError, "'answer'", "'id', 'problem'", "FILE:answer=COLUMN"):
        load_set(written([{"id": "a", "problem": "b"}]))
    with refused(DataError, "'difficulty'"):
        load_set(written(ROWS, ":id=difficulty"))
    with refused(DataError, "no such file"):
        load_set(parse_benchmark(f"mine={tmp_path / 'no.jsonl'}"))
    with refused(ConfigError, "mine", "path="):
        load_set(Benchmark(name="mine"))
    monkeypatch.setattr("datasets.load_dataset", refuse)
    with refused(DataError, "'HuggingFaceH4/aime_2024'", "no network", "aime24.jsonl: --data FOLDER"):
        load_set(BENCHMARKS["aime24"])


def test_limit_is_the_same_for_every_run_and_nested(written):
    ids = [[p.id for p in load_set(written(ROWS), limit=n).problems] for n in range(1, 10)]
    assert [len(found) for found in ids] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    for smaller, larger in pairwise(ids):
        assert set(smaller) <= set(larger) and larger == sorted(larger)
    assert ids[2] != ["a/0", "a/1", "a/2"], "a set in order of difficulty must not give its easy end"
    assert [p.id for p in load_set(written(ROWS[::-1]), limit=3).problems] == ids[2][::-1]
    assert load_set(written(ROWS), limit=3).notes == ("3 of 8 problems",)
    with refused(ConfigError, "--limit 0"):
        load_set(written(ROWS), limit=0)


def test_content_hash_is_of_the_content_alone():
    pairs = [("What is $x$?", "1"), ("And  y?", r"\frac{1}{2}")]
    same = [("And y?\n", r"$\frac{1} {2}$"), ("What is $x$ ?", "1")]
    assert content_hash(pairs) == content_hash(same)
    for other in (
        [("What is $x$?", r"\frac{1}{2}"), ("And y?", "1")],  # answers exchanged
        [("What is $x$?", "2"), pairs[1]],
        [("What is $X$?", "1"), pairs[1]],
        [*pairs, pairs[0]],
        pairs[:1],
    ):
        assert content_hash(other) != content_hash(pairs)
    assert content_hash([("a", "bc")]) != content_hash([("ab", "c")])


@pytest.mark.parametrize("name", [name for name, record in BENCHMARKS.items() if record.rule not in FORMATS])
def test_real_files_are_the_standard_sets(name, real_data):
    found = load_set(choose([name], [], folder=str(real_data / "eval"))[0])
    assert found.standard and found.notes == () and len(found.problems) == BENCHMARKS[name].problems
