"""Verdicts: what is right, what is not and why; hostile texts; real gold answers against themselves."""

import gzip
import json
import random
import sys
from itertools import product

import pytest
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading import verifier as module
from answer_judge.grading.judge import judge
from answer_judge.grading.verifier import RULES, Verdict, Verifier

CASES = [
    (r"\boxed{42}", "42", "right"),
    (r"\boxed{042}", "42", "right"),
    (r"\boxed{41}", "42", "wrong"),
    (r"\boxed{\frac{2}{4}}", r"\frac12", "right"),
    (r"\boxed{0.5}", r"\dfrac{1}{2}", "right"),
    (r"\boxed{\frac{1}{3}}", r"\frac{1}{2}", "wrong"),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", "right"),
    (r"\boxed{1,072}", "1072", "right"),
    (r"\boxed{\$18}", "18", "right"),
    (r"\boxed{5 \text{ apples}}", "5", "right"),
    (r"\boxed{\{3, 1, 2\}}", r"\{1,2,3\}", "right"),
    (r"\boxed{(1, 2)}", "(2,1)", "wrong"),
    (r"\boxed{70110}", "70,110", "right"),  # a list that reads as one number: see the data's known defects
    ("The answer is 7.", "7", "right"),
    ("<<48/2=24>>\n#### 24", "24", "right"),
    ("I get 24", "24", "no_answer"),
    (r"\boxed{24", "24", "no_answer"),
    ("", "24", "no_answer"),
    (r"\boxed{½½}", "24", "unparsed"),
    (r"\boxed{t(0, 4]}", "t(0,4]", "right"),  # a gold answer that is only text
    (r"\boxed{t(0,5]}", "t(0,4]", "wrong"),
    (r"\boxed{\frac{2}{3} E_{2}}", r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", "wrong"),
    (r"\boxed{7} no, \boxed{8}", "7", "wrong"),
]


def test_verdicts(verifier):
    verdicts = verifier.verify_many([case[0] for case in CASES], [case[1] for case in CASES])
    assert [verdict.reason for verdict in verdicts] == [case[2] for case in CASES]
    assert [verdict.value for verdict in verdicts] == [float(case[2] == "right") for case in CASES]
    assert verifier.verify(*CASES[3][:2]) == Verdict(1.0, "right")


def test_order_is_kept_through_fast_and_slow_answers_and_repeats(verifier):
    rng = random.Random(0)
    numbers = [rng.randrange(2, 30) for _ in range(400)]
    texts = [rng.choice([rf"\boxed{{{n}}}", rf"\boxed{{\frac{{{2 * n}}}{{2}}}}"]) for n in numbers]
    golds = [str(n + rng.randrange(2)) for n in numbers]
    values = [verdict.value for verdict in verifier.verify_many(texts, golds)]
    expected = [float(str(n) == gold) for n, gold in zip(numbers, golds, strict=True)]
    assert values == expected


def test_the_fast_path_says_what_mathematics_says(verifier):
    for answer, gold in product(["3", "-3", "007", "+4"], ["3", "-3", "7", "4"]):
        fast = verifier.verify(rf"\boxed{{{answer}}}", gold).reason
        assert fast == judge({"answer": answer, "gold": gold})


def test_fast_answers_need_no_worker():
    with_no_pool = Verifier()
    assert with_no_pool.verify(r"\boxed{3}", "3").reason == "right"
    assert with_no_pool.verify("no idea", "3").reason == "no_answer"
    assert with_no_pool.pids == []


def test_a_tower_of_powers_times_out_and_the_next_answer_is_judged():
    with Verifier(workers=1, limit_seconds=1.5) as hasty:
        first = hasty.pids
        verdicts = hasty.verify_many([r"\boxed{9^{9^{9^9}}}", r"\boxed{\frac{6}{2}}"], ["5", "3.0"])
        assert [verdict.reason for verdict in verdicts] == ["timeout", "right"]
        assert verdicts[0].value == 0.0
        assert hasty.pids != first


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


@pytest.mark.parametrize("name", ["train/gsm8k_train.jsonl.gz", "train/math_train.jsonl.gz"])
def test_real_gold_answers_are_right_and_the_next_ones_are_not(name, real_data, verifier, monkeypatch):
    with gzip.open(real_data / name, "rt", encoding="utf-8") as lines:
        golds = [json.loads(line)["answer"] for line in lines]
    golds = random.Random(0).sample(golds, 300)
    texts = [rf"Thus the answer is $\boxed{{{gold}}}$." for gold in golds]
    for match in (module.plain_match, lambda answer, gold: None):  # with comparison as text, and by mathematics alone
        monkeypatch.setattr(module, "plain_match", match)
        verdicts = verifier.verify_many(texts, golds)
        assert [(g, v.reason) for g, v in zip(golds, verdicts, strict=True) if v.value != 1.0] == []
    shifted = verifier.verify_many(texts[1:] + texts[:1], golds)
    assert sum(verdict.value for verdict in shifted) < 0.05 * len(golds)
