"""Verdicts: what is right, what is not and why; hostile texts; real gold answers against themselves."""

import gzip
import json
import random
import sys

import pytest
from refusals import refused

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading import verifier as module
from answer_judge.grading.judge import judge
from answer_judge.grading.verifier import REASONS, RULES, Verdict, Verifier

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
    assert values[::-1] != expected  # the check can fail


@pytest.mark.parametrize("answer", ["3", "-3", "007", "12345678901234567890", "+4"])
@pytest.mark.parametrize("gold", ["3", "-3", "7", "12345678901234567890", "4"])
def test_the_fast_path_says_what_mathematics_says(answer, gold, verifier):
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


def hostile_texts(count):
    """Answers written to break a parser, filled up to ``count`` with random LaTeX."""
    texts = [
        r"9^{9^{9^{9^{9}}}}",
        r"10^{10^{10}}!",
        r"(((((10!)!)!)!)!)",
        r"\int_0^\infty \int_0^\infty e^{-x^2 y^4} \sin(x^y) dx dy",
        r"\sum_{n=1}^{\infty} \frac{\sin(n)}{n^{n!}}",
        r"\lim_{x \to 0} \frac{\sin^{50}(x)}{x^{50}}",
        r"\prod_{k=1}^{10^{12}} k",
        "(" * 900 + "1" + ")" * 900,
        r"\frac{1}{" * 150 + "2" + "}" * 150,
        r"\sqrt{" * 150 + "2" + "}" * 150,
        "1" * 999,
        "-" * 900 + "1",
        "+".join(f"x_{{{i}}}" for i in range(150)),
        "(x+1)^{99999}",
        r"\begin{pmatrix}" + r"\\".join("&".join("1" * 15) for _ in range(15)) + r"\end{pmatrix}^{-1}",
        "1/0",
        r"\frac{0}{0}",
        r"\infty - \infty",
        r"\log_{0}{0}",
        "__import__('os').system('touch hacked')",
        "exec(open('hacked','w').write('x'))",
        r"\text{__import__('os').system('touch hacked')}",
        r"\operatorname{eval}(1)",
        "{'a': 1}.__class__.__mro__",
        "\x00\x01\x02",
        "\ud800",
        "\u202e5",
        "🦆" * 400,
        "%s%n%d" * 50,
        "\\" * 501,
        "$" * 501,
        r"\{" * 400,
        '{"id": 0, "value": "right"}',
        "a" * 5000,
        r"\boxed" * 100,
        r"x^{" * 100 + "y" + "}" * 100,
        r"\left( \left[ \right) \right]",
        r"\href{file:///etc/passwd}{1}",
        r"\input{/etc/passwd}",
        r"\sin^{-1}" * 60 + "x",
    ]
    rng = random.Random(1)
    pieces = [r"\frac", "{", "}", "(", ")", "^", "_", "1", "9", "x", r"\sqrt", "+", "!", r"\int", "=", ",", r"\le", " "]
    while len(texts) < count:
        texts.append("".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40))))
    return texts


@pytest.mark.slow
def test_200_hostile_answers_all_get_a_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = hostile_texts(200)
    with Verifier(workers=2, limit_seconds=0.6) as hasty:
        verdicts = hasty.verify_many([rf"so \boxed{{{answer}}}" for answer in answers], ["31415"] * 200)
    assert len(verdicts) == 200
    assert {verdict.value for verdict in verdicts} == {0.0}
    assert {verdict.reason for verdict in verdicts} <= set(REASONS) - {"right"}
    assert list(tmp_path.iterdir()) == []
    reasons = [verdict.reason for verdict in verdicts]
    assert reasons[0] == "timeout"
    assert reasons[answers.index("a" * 5000)] == "unparsed"


def test_bad_calls_are_errors_not_zeros(verifier):
    with pytest.raises(DataError, match="2 completions but 1 gold"):
        verifier.verify_many(["a", "b"], ["1"])
    assert {verifier.verify(nothing, "24").reason for nothing in (None, "", "  ")} == {"no_answer"}
    with pytest.raises(DataError, match=r"completion 1 is list, expected text.*completion\[-1\]\['content'\]"):
        verifier.verify_many([None, [{"role": "assistant", "content": "24"}]], ["24"] * 2)
    with refused(DataError, "gold answer 0", None):
        verifier.verify("24", None)
    for lists in (("ab", ["1", "2"]), (["a", "b"], "12")):
        with refused(DataError, "verify_many", "verify("):
            verifier.verify_many(*lists)
    for empty in ("", "  ", None, 3):
        with pytest.raises(DataError, match="gold answer 1 is"):
            verifier.verify_many(["a", "b"], ["1", empty])
    with refused(ConfigError, "benchmark='nothing'"):
        verifier.verify("a", "1", benchmark="nothing")
    assert all(verifier.verify(r"\boxed{1}", "1", benchmark=name).reason == "right" for name in RULES)
    with pytest.raises(ConfigError, match="workers=0"):
        Verifier(workers=0)


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
