"""Problems whose answer is a program: columns, the program in a completion, verdicts, the reward."""

import json
from pathlib import Path

import pytest
from refusals import refused

from answer_judge.errors import DataError
from answer_judge.evaluation import load_set
from answer_judge.problems import Benchmark, Judges, check_rewards, code_tests, load_problems
from answer_judge.problems.code import CodeTests, program_in
from answer_judge.sandbox import Limits, Sandbox

HERE = Path(__file__).parent
HUMANEVAL, MBPP = HERE / "code_humaneval.jsonl", HERE / "code_mbpp.jsonl"


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def judges(confined):
    with Judges(workers=1, limits=Limits(wall_seconds=60.0, cpu_seconds=2)) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "rule", "column"), [(HUMANEVAL, "humaneval", "canonical_solution"), (MBPP, "mbpp", "code")]
)
def test_known_solutions_are_right_and_others_wrong_in_evaluation_and_training(path, rule, column, judges):
    found, solutions = load_set(Benchmark(name="mine", path=str(path))), [row[column] for row in rows_of(path)]
    assert found.benchmark.rule == rule, "by the columns"
    golds = [problem.answer for problem in found.problems]
    fenced = [f"So:\n```python\n{solution}\n```\nThis is it." for solution in solutions]
    for completions in (solutions, fenced):
        assert [v.reason for v in judges.verify_many(completions, golds, benchmark=rule)] == ["right"] * len(golds)
    wrong = [f"```python\ndef {CodeTests.of(gold).names[0]}(*a, **k):\n    return None\n```" for gold in golds]
    assert {v.reason for v in judges.verify_many(wrong, golds, benchmark=rule)} <= {"wrong", "error"}
    assert [v.reason for v in judges.verify_many(["", " \n"], golds[:2], benchmark=rule)] == ["no_answer"] * 2
    dataset = load_problems(str(path))
    assert dataset["answer"] == golds
    assert "```python block" in dataset[0]["prompt"][0]["content"]
    reward = code_tests(sandbox=judges.sandbox)
    check_rewards(dataset, [reward])
    logged, told = {}, {}
    completions = [[{"role": "assistant", "content": text}] for text in (fenced[0], "no")]
    values = reward(
        prompts=["", ""], completions=completions, answer=dataset["answer"][:1] * 2,
        log_metric=logged.__setitem__, log_extra=told.__setitem__,
    )  # fmt: skip
    assert values == [1.0, 0.0] and told["verdict"][0] == "right"
    assert logged["code/right"] == 0.5 and sum(logged.values()) == 1.0


def test_the_program_in_a_completion():
    prompt = 'def inc(x):\n    """One more."""\n'
    tests = CodeTests(prompt, ("inc",), prompt, "check(inc)")
    for row in rows_of(HERE / "programs_in_completions.jsonl"):
        assert program_in(row["completion"], tests) == row["program"]


def write(tmp_path, rows):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_rows_that_cannot_be_run_or_that_no_program_or_every_one_would_pass_are_named(tmp_path):
    first, second, *_ = rows_of(HUMANEVAL)
    bad = [("test", ""), ("test", "assert inc(1) == 2"), ("entry_point", None), ("entry_point", "in c")]
    for column, value in (*bad, ("prompt", None)):
        with refused(DataError, "1 row (counted from 0: 1)", column):
            load_problems(write(tmp_path, [first, {**second, column: value}]))
    good = rows_of(MBPP)[0]
    with refused(DataError, "1 row (counted from 0: 1)"):
        load_problems(write(tmp_path, [good, {**good, "task_id": 9, "test_list": ["assert f( == 1"]}]))
    with refused(DataError, "'test_list'", "mbpp"):
        load_set(Benchmark(name="m", path=write(tmp_path, [{"text": "a", "code": "b"}]), rule="mbpp"))
    mathematics = write(tmp_path, [{"problem": "1 + 1?", "answer": "2", "test_list": ["assert f(1) == 1"]}])
    assert load_set(Benchmark(name="m", path=mathematics)).benchmark.rule is None
    with refused(DataError, "answer '5'"), Sandbox(workers=1) as sandbox:
        code_tests(sandbox=sandbox)(prompts=[""], completions=["x"], answer=["5"])
    with refused(DataError, "'answer'", "'gold'"):
        code_tests()(prompts=[""], completions=["x"], gold=["5"])
