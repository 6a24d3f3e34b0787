"""Gold answers with a unit or a thing in plain words, and units that contradict each other."""

import pytest

from answer_judge.grading import verify

GOLDS = {
    "20 apples": "20",
    r"20\text{ apples}": "20",
    "4 square units": "4",
    "1/2 cup": r"\frac{1}{2}",
    "9.8 m/s^2": "9.8",
    "5 m": "5",
    "3.0 x 10^8 m/s": r"3 \times 10^8",
}


@pytest.mark.parametrize("gold", GOLDS)
def test_a_gold_answer_with_a_unit_in_plain_words_is_its_number(gold):
    """The wrong twin reads words behind a number as a product of letters, or not at all."""
    right = [rf"\boxed{{{answer}}}" for answer in (GOLDS[gold], gold)]
    assert [verify(answer, gold).reason for answer in right] == ["right"] * 2
    assert verify(r"\boxed{77}", gold).reason == "wrong"


@pytest.mark.parametrize("gold", ["5 ab", "5 cos x", "20 x", "5 x^2 m"])
def test_a_formula_with_spaces_stays_one(gold):
    number = gold.split()[0]
    assert verify(rf"\boxed{{{number}}}", gold).reason != "right"
    assert verify(rf"\boxed{{{gold}}}", gold).reason == "right"


SAME = [
    ("4 cups", "1 quart"),
    ("5 kilojoules", "5 kJ"),
    ("5000 pF", "5 nF"),
    (r"500\text{ MHz}", r"0.5\text{ GHz}"),
    ("20 mmols", "20 mmol"),
    ("5 uL", "5 microliters"),
    ("100 kW", "100 kilowatts"),
    ("300 cc", "300 millilitres"),
    ("1013 hPa", r"101300\text{ Pa}"),
    ("45 square units", r"45\text{ units}^2"),
]
OTHER = [
    (r"20^\circ F", r"20^\circ C"),
    (r"30^\circ\text{ N of E}", r"30^\circ\text{ E of N}"),
    (r"5\text{ miles south}", r"5\text{ miles north}"),
    ("4 cups", "1 pint"),
    ("5 pJ", "5 GJ"),
    (r"5\text{ mW}", r"5\text{ MW}"),
    ("45 square units", r"45\text{ units}^5"),
    (r"12\text{ pears}", r"12\text{ apples}"),
]


def test_units_are_converted_and_told_apart():
    assert [pair for pair in SAME if verify(rf"\boxed{{{pair[0]}}}", pair[1]).reason != "right"] == []
    assert [pair for pair in OTHER if verify(rf"\boxed{{{pair[0]}}}", pair[1]).reason == "right"] == []
