"""Functions of the user's as judges: scores, faults that are told once and cost no run, names that lead nowhere."""

import json
import sys
import warnings

import pytest
from refusals import refused, warned

from answer_judge.errors import ConfigError, RewardError
from answer_judge.evaluation import load_set, parse_benchmark
from answer_judge.problems import Checker, Judges, check_rewards, checker_reward, load_problems

ROWS = [{"problem": f"Say w{i}.", "word": f"w{i}", "tags": ["a", None], "answer": f"#### {i}"} for i in range(4)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


def asked(reward, texts, **given):
    rows = [ROWS[i % 4] for i in range(len(texts))]
    columns = {name: [row[name] for row in rows] for name in ("word", "tags")}
    return reward(prompts=[row["problem"] for row in rows], completions=texts, **columns, **given)


def test_scores_are_the_functions(file):
    dataset = load_problems(str(file), answers=False)
    reward, logged = checker_reward("check:own_checkers:says", workers=1), {}
    check_rewards(dataset, [reward])
    assert asked(reward, ["w0", "W1", "no", "so w3"], log_metric=logged.__setitem__) == [1.0, 0.5, 0.0, 1.0]
    assert reward.__name__ == "says" and logged["check/right"] == 0.5 and sum(logged.values()) == 1.0
    assert asked(checker_reward("check:own_checkers:numpy_score", workers=1), ["w0", "no"]) == [1.0, 0.0]


FAULTS = {
    "raises": "It raised KeyError: 'no such column', on 'w0'",
    "none": "It returned None",
    "text": "It returned 'right'",
    "nan": "It returned nan",
    "two": "It returned 2.0",
    "hangs": "within 1 seconds",
    "ends": "It ended its process",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_checker_that_never_works_is_one_error(name):
    limit = 1.0 if name == "hangs" else 30.0
    with refused(RewardError, f"check:own_checkers:{name}", "first 2 completions", FAULTS[name]):
        asked(checker_reward(f"check:own_checkers:{name}", workers=1, limit_seconds=limit), ["w0", "w1"])


def test_one_that_fails_now_and_then_costs_those_completions_alone():
    reward = checker_reward("check:own_checkers:sometimes", workers=1, limit_seconds=30.0)
    with warned("1 of 4"):
        assert asked(reward, ["w0", "odd", "w2", "no"]) == [1.0, None, 1.0, 0.0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert asked(reward, ["odd"] * 20) == [None] * 20  # nothing is lost: it has worked before
    assert len(told) == 4  # 2, 4, 8 and 16 so far


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    (tmp_path / "exits_at_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    for name, said in (
        ("check:own_checkers:nowhere", "AttributeError"),
        ("check:no_such_module:f", "ModuleNotFoundError"),
        ("check:own_checkers:not_a_function", "is int, not a function"),
        ("check:exits_at_import:f", "SystemExit"),
        ("check:own_checkers", "check:package.module:function"),
    ):
        with refused(ConfigError, said):
            Checker(name)


def test_a_module_of_the_current_folder_is_imported_before_any_clock(tmp_path, monkeypatch):
    """As the command ``dppo`` finds it, without that folder on its path; its import takes longer than the limit."""
    (tmp_path / "slow_checker.py").write_text(
        "import time\ntime.sleep(1)\ndef right(completion, row): return row['word'] in completion\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place not in ("", str(tmp_path))])
    reward = checker_reward("check:slow_checker:right", workers=1, limit_seconds=0.9)
    assert asked(reward, ["w0", "no"]) == [1.0, 0.0] and str(tmp_path) not in sys.path


def test_a_set_is_judged_by_it(file):
    found = load_set(parse_benchmark(f"own={file}:rule=check:own_checkers:says"))
    golds = [problem.answer for problem in found.problems]
    assert [json.loads(gold)["answer"] for gold in golds] == [row["answer"] for row in ROWS], "whole, as it stands"
    with Judges(workers=1, limit_seconds=30.0) as judges:
        verdicts = judges.verify_many(["w0", "W1", "", "w3"], golds, benchmark=found.benchmark.rule)
    assert [(v.value, v.reason) for v in verdicts] == [(1.0, "right"), (0.5, "wrong"), (0.0, "wrong"), (1.0, "right")]
