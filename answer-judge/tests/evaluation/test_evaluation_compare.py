"""Two evaluations, paired by problem."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from evaluation_fakes import FakeJudge, answers, fake_engine, problem_set
from refusals import refused

from answer_judge.errors import EvaluationError, FileError
from answer_judge.evaluation import Generated, Protocol, Sampling, compare, evaluate


def made(folder, answer=answers, sets=None, *, samples=4, seed=0, model="a"):
    sets = sets or (problem_set(40, "one"), problem_set(20, "two"))
    protocol = Protocol(sets=sets, samples=samples, seed=seed, sampling=Sampling(max_new_tokens=40))
    evaluate(protocol, fake_engine(answer, batch_size=64, facts={"model": model}), FakeJudge(), folder)
    return folder


def often(request, sampling):
    """Like ``answers``, and sometimes right where that was wrong: the answer's number is its prompt's."""
    found = answers(request, sampling)
    return Generated("\\boxed{7}", found.tokens, "stop") if "\\boxed" not in found.text else found


def test_differences_and_settings(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b", often, model="b")
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
    assert json.loads(json.dumps(asdict(found)))["benchmarks"]["one"]["problems"] == 40


def test_other_limits_compare_the_problems_in_both(tmp_path):
    whole = problem_set(40, "one")
    a = made(tmp_path / "a", sets=(whole,))
    b = made(tmp_path / "b", sets=(replace(whole, problems=whole.problems[5:]),))
    assert compare(a, b).benchmarks["one"].problems == 35
    c = made(tmp_path / "c", sets=(replace(whole, problems=whole.problems[:5]),))
    with refused(EvaluationError, "one", "in common"):
        compare(b, c)


def test_runs_that_cannot_be_compared(tmp_path):
    a = made(tmp_path / "a", sets=(problem_set(4, "one"),))
    with refused(EvaluationError, "benchmark in common", "one there", "two here"):
        compare(a, made(tmp_path / "b", sets=(problem_set(4, "two"),)))
    other = replace(problem_set(4, "one"), content="something else")
    with refused(EvaluationError, "one", "same set"):
        compare(a, made(tmp_path / "c", sets=(other,)))
    with pytest.raises(FileError, match="no finished evaluation"):
        compare(a, tmp_path / "nothing")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "results.json").write_text('{"format": 1, "seeds": [0]}')
    with refused(EvaluationError, "of no evaluation", "dppo report"):
        compare(a, tmp_path / "runs")
