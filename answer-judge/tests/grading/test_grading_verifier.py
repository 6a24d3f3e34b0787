"""Verdicts: what is right, what is not and why; hostile texts; real gold answers against themselves."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading import verifier as module
from answer_judge.grading.judge import judge
from answer_judge.grading.verifier import RULES, Verifier

CASES = [json.loads(line) for line in Path(__file__).with_name("verdicts.jsonl").open(encoding="utf-8")]


def test_verdicts(verifier):
    verdicts = verifier.verify_many([case["text"] for case in CASES], [case["gold"] for case in CASES])
    assert [verdict.reason for verdict in verdicts] == [case["reason"] for case in CASES]
    assert [verdict.value for verdict in verdicts] == [float(case["reason"] == "right") for case in CASES]


def test_the_fast_path_says_what_mathematics_says(verifier):
    for answer, gold in product(["3", "-3", "007", "+4"], ["3", "-3", "7", "4"]):
        assert verifier.verify(rf"\boxed{{{answer}}}", gold).reason == judge({"answer": answer, "gold": gold})


def test_a_tower_of_powers_times_out_and_the_next_answer_is_judged():
    with Verifier(workers=1, limit_seconds=1.5) as hasty:
        verdicts = hasty.verify_many([r"\boxed{e^{e^{e^{e^{20}}}}}", r"\boxed{\frac{6}{2}}"], ["5", "3.0"])
        assert [verdict.reason for verdict in verdicts] == ["timeout", "right"]


@pytest.mark.parametrize(
    "tower", ("9^{9^{20}}", "9^{9^{9^9}}", "(9!)!", r"\binom{10^6}{9^5}", r"\frac{1}{9^{9^{20}}}", "2^{10^9}x")
)
def test_a_number_of_too_many_digits_is_not_written_out(tower, verifier):
    pids = verifier.pids
    boxes = [rf"\boxed{{{tower}}}", rf"\boxed{{{tower} }}", r"\boxed{0.5}"]
    verdicts = verifier.verify_many(boxes, ["5", tower, tower])
    assert [each.reason for each in verdicts] == ["unparsed", "right", "wrong"] and verifier.pids == pids


def test_bad_calls_are_errors_not_zeros(verifier):
    assert {verifier.verify(nothing, "24").reason for nothing in (None, "", "  ")} == {"no_answer"}
    message = [{"role": "assistant", "content": "24"}]
    for completions, golds, *named in (
        (["a", "b"], ["1"], "2 completions", "1 gold"),
        ([None, message], ["24"] * 2, "completion 1", "completion[-1]['content']"),
        (["24"], [None], "gold answer 0", None),
        (["a", "b"], ["1", "  "], "gold answer 1"),
        ("ab", ["1", "2"], "verify_many", "verify("),
    ):
        with refused(DataError, *named):
            verifier.verify_many(completions, golds)
    with refused(ConfigError, "benchmark='nothing'"):
        verifier.verify("a", "1", benchmark="nothing")
    assert all(verifier.verify(r"\boxed{1}", "1", benchmark=name).reason == "right" for name in RULES)


def test_a_missing_math_verify_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "latex2sympy2_extended", None)
    monkeypatch.delitem(sys.modules, "answer_judge.grading.judge")
    with pytest.raises(ConfigError, match="pip install"):
        Verifier()


def test_workers_that_cannot_judge_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_PROBES", (({"answer": "1", "gold": "2"}, "right"),))
    with Verifier(workers=1) as broken, pytest.raises(Exception, match="self-test"):
        broken.verify(r"\boxed{\frac12}", "0.5")
