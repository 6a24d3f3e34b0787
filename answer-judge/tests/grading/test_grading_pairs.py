"""The tables of answers: what must be right, what must not, what we know we reject, and what other graders ask."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from answer_judge.grading.answers import plain_match
from answer_judge.grading.judge import judge
from answer_judge.grading.verifier import RULES


def table(name):
    with Path(__file__).with_name(f"{name}_pairs.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


REJECTED = {
    r"(n+1)(n+2)\cdots(2n)",  # dots are not read
    r"\sum_{k=1}^{4}k",  # nor sums
    r"\int_0^1 2x dx",  # nor integrals
    r"12 \bmod 5",  # nor remainders
    r"I(0) e^{-t/RC}",  # t/R times C
    r"\text{isosceles triangle}",  # words must be the same words
    r"\lfloor (n+1)/2 \rfloor",  # for whole n alone, and nothing says that n is whole
    r"\left\lfloor\frac{n+1}{2}\right\rfloor",
}
"""Right answers of the table that the verifier does not accept."""
FEWEST = 1_500


@pytest.fixture(scope="module")
def rows():
    return table("verifier")


@pytest.fixture(scope="module")
def reasons(rows, verifier):
    """The verdict on every row, each as the box at the end of a sentence."""
    found = {}
    for rule in RULES:
        mine = [i for i, row in enumerate(rows) if row["rule"] == rule]
        texts = [rf"Thus the answer is $\boxed{{{rows[i]['answer']}}}$." for i in mine]
        details = [json.loads(rows[i]["details"] or "null") for i in mine]
        verdicts = verifier.verify_many(texts, [rows[i]["gold"] for i in mine], benchmark=rule, details=details)
        found.update(zip(mine, (verdict.reason for verdict in verdicts), strict=True))
    return [found[i] for i in range(len(rows))]


def shown(row):
    return f"{row['kind']}: {row['answer']} for {row['gold']}"


def test_the_table_has_right_and_wrong_answers_of_every_kind(rows):
    assert len(rows) >= FEWEST
    counts = Counter((row["kind"], row["verdict"]) for row in rows)
    assert {verdict for _, verdict in counts} == {"right", "wrong"}
    assert all(counts[kind, verdict] >= 2 for kind in {kind for kind, _ in counts} for verdict in ("right", "wrong"))
    assert len({tuple(row.values()) for row in rows}) == len(rows)


def test_nothing_wrong_is_accepted(rows, reasons):
    accepted = [
        shown(r) for r, reason in zip(rows, reasons, strict=True) if r["verdict"] == "wrong" and reason == "right"
    ]
    assert accepted == []


def test_at_most_one_right_answer_in_a_hundred_is_rejected_and_we_know_which(rows, reasons):
    right = [(row, reason) for row, reason in zip(rows, reasons, strict=True) if row["verdict"] == "right"]
    rejected = [row for row, reason in right if reason != "right"]
    assert {row["answer"] for row in rejected} == REJECTED, [shown(row) for row in rejected]
    assert len(rejected) <= 0.01 * len(right)
    assert {reason for _, reason in right} <= {"right", "wrong", "unparsed"}


def test_the_tests_above_can_fail(rows, reasons):
    """A verifier that compares letters and digits, and one that looks for the gold answer in the answer."""

    def bare(text):
        return "".join(c for c in text if c.isalnum())

    equal = [bare(row["answer"]) == bare(row["gold"]) for row in rows]
    within = [bare(row["gold"]) in bare(row["answer"]) for row in rows]
    for verdicts in (equal, within):
        pairs = list(zip(rows, verdicts, strict=True))
        assert any(accepted and row["verdict"] == "wrong" for row, accepted in pairs)
        assert sum(not accepted and row["verdict"] == "right" for row, accepted in pairs) > 100


def test_tolerance_is_the_benchmarks_alone(verifier):
    text = r"\boxed{3.83 \times 10^{26}}"
    verdicts = {rule: verifier.verify(text, r"3.8 \times 10^{26}", benchmark=rule).reason for rule in RULES}
    assert [rule for rule, reason in verdicts.items() if reason == "right"] == ["minerva_math"]


UNREAD = "not read: "
"""How the reason begins where an answer is right and is refused."""


def found(row):
    if plain_match(row["answer"], row["gold"]):
        return "right"
    return "right" if judge({"answer": row["answer"], "gold": row["gold"]}) == "right" else "wrong"


def test_verdicts_on_the_cases_of_other_graders_are_our_own_and_every_difference_has_a_reason():
    public = table("public")
    expected = ["wrong" if row["reason"].startswith(UNREAD) else row["verdict"] for row in public]
    assert [row for row, verdict in zip(public, expected, strict=True) if found(row) != verdict] == []
    for row in public:
        assert {row["there"], row["verdict"]} <= {"right", "wrong"}
        assert bool(row["reason"]) == (row["there"] != row["verdict"] or row["reason"].startswith(UNREAD)), row
    sources = {row["source"].split()[0] for row in public}
    assert sources == {"hendrycks/math", "NVIDIA/NeMo-Skills", "huggingface/Math-Verify"} and len(public) > 250


def test_formulas_are_read_as_people_read_them_and_not_mistaken():
    for row in table("formula"):
        pair = row["answer"], row["gold"]
        verdicts = {judge({"answer": one, "gold": other}) for one, other in (pair, pair[::-1])}
        assert verdicts == {row["verdict"]}, row


def test_words_around_an_answer_that_make_another_of_it_are_not_thrown_away():
    assert [row for row in table("words") if found(row) != row["verdict"]] == []
