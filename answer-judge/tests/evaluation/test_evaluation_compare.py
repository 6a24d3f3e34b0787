"""Two evaluations, paired by problem."""

import json
from dataclasses import replace

import numpy as np
import pytest
from evaluation_fakes import FakeJudge, answers, fake_engine, problem_set
from refusals import refused

from answer_judge.errors import EvaluationError, FileError
from answer_judge.evaluation import Generated, Protocol, Sampling, compare, evaluate


def made(folder, *sets, answer=answers, model="a"):
    protocol = Protocol(sets=sets, samples=4, sampling=Sampling(max_new_tokens=40))
    evaluate(protocol, fake_engine(answer, batch_size=64, facts={"model": model}), FakeJudge(), folder)
    return folder


def often(request, sampling):
    """Like ``answers``, and sometimes right where that was wrong: the answer's number is its prompt's."""
    found = answers(request, sampling)
    return Generated("\\boxed{7}", found.tokens, "stop") if "\\boxed" not in found.text else found


def test_differences_and_settings(tmp_path):
    sets = (problem_set(40, "one"), problem_set(20, "two"))
    a, b = made(tmp_path / "a", *sets), made(tmp_path / "b", *sets, answer=often, model="b")
    found = compare(a, b)
    rows = [[json.loads(line) for line in (run / "problems.jsonl").read_text().splitlines()] for run in (a, b)]
    shares = [{row["id"]: row["right"] / row["samples"] for row in run} for run in rows]
    assert found.settings == ('engine.model is "a" there and "b" here',)
    for name, pair in found.benchmarks.items():
        differences = [shares[1][id] - shares[0][id] for id in shares[0] if id.startswith(name)]
        assert pair.problems == len(differences) and pair.difference.value == pytest.approx(np.mean(differences))
        assert pair.after - pair.before == pytest.approx(pair.difference.value)
        assert pair.better == sum(d > 0 for d in differences) and pair.worse == sum(d < 0 for d in differences)
        assert pair.difference.low <= pair.difference.value <= pair.difference.high
    assert found.average.value == pytest.approx(np.mean([p.difference.value for p in found.benchmarks.values()]))


def test_other_limits_compare_the_problems_in_both_and_runs_without_any_are_refused(tmp_path):
    one = problem_set(12, "one")
    sets = {"a": one, "b": replace(one, problems=one.problems[5:]), "c": replace(one, problems=one.problems[:5])}
    sets |= {"other": problem_set(4, "two"), "changed": replace(one, content="something else")}
    runs = {name: made(tmp_path / name, each) for name, each in sets.items()}
    assert compare(runs["a"], runs["b"]).benchmarks["one"].problems == 7
    for first, second, *named in (
        ("b", "c", "one", "in common"),
        ("a", "other", "benchmark in common", "one there", "two here"),
        ("a", "changed", "one", "same set"),
    ):
        with refused(EvaluationError, *named):
            compare(runs[first], runs[second])
    with refused(FileError, "no finished evaluation"):
        compare(runs["a"], tmp_path / "nothing")
    (tmp_path / "results.json").write_text('{"format": 1, "seeds": [0]}')
    with refused(EvaluationError, "of no evaluation", "dppo report"):
        compare(runs["a"], tmp_path)
