"""Gold answers with a unit or a thing in plain words, and labels that contradict each other."""

import pytest

from answer_judge.grading import verify


@pytest.mark.parametrize(
    ("gold", "number"),
    [
        ("20 apples", "20"),
        (r"20\text{ apples}", "20"),
        ("4 square units", "4"),
        ("1,200 apples", "1200"),
        ("1/2 cup", r"\frac{1}{2}"),
        ("8 cups", "8"),
        ("500 km/h", "500"),
        ("9.8 m/s^2", "9.8"),
        ("5 m", "5"),
        ("3.0 x 10^8 m/s", r"3 \times 10^8"),
    ],
)
def test_a_gold_answer_with_a_unit_in_plain_words_is_its_number(gold, number):
    """The wrong twin reads words behind a number as a product of letters, or not at all."""
    right = [rf"\boxed{{{answer}}}" for answer in (number, gold)]
    assert [verify(answer, gold).reason for answer in right] == ["right"] * 2
    assert verify(r"\boxed{77}", gold).reason == "wrong"


@pytest.mark.parametrize("gold", ["5 ab", "5 cos x", "20 x", "5 x^2 m"])
def test_a_formula_with_spaces_stays_one(gold):
    number = gold.split()[0]
    assert verify(rf"\boxed{{{number}}}", gold).reason != "right"
    assert verify(rf"\boxed{{{gold}}}", gold).reason == "right"


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        (r"20^\circ C", r"20^\circ\text{ Celsius}", "right"),
        (r"20^\circ F", r"20^\circ C", "wrong"),
        (r"20\text{ degrees Celsius}", r"20\text{ degrees Fahrenheit}", "wrong"),
        (r"30^\circ\text{ N of E}", r"30^\circ\text{ north of east}", "right"),
        (r"30^\circ\text{ N of E}", r"30^\circ\text{ E of N}", "wrong"),
        (r"5\text{ miles south}", r"5\text{ miles north}", "wrong"),
        (r"5\text{ miles}", r"5\text{ miles north}", "right"),
        ("4 cups", "1 quart", "right"),
        ("4 cups", "1 pint", "wrong"),
        ("5 kilojoules", "5 kJ", "right"),
        ("5000 pF", "5 nF", "right"),
        (r"500\text{ MHz}", r"0.5\text{ GHz}", "right"),
        ("3 megawatts", "3 MW", "right"),
        ("5 pJ", "5 GJ", "wrong"),
        (r"5\text{ GJ}", r"5\text{ pJ}", "wrong"),
        (r"5\text{ mW}", r"5\text{ MW}", "wrong"),
        ("7 pm", "7 p.m.", "right"),
        *(
            (answer, gold, "right")
            for answer, gold in (
                ("20 mmols", "20 mmol"),
                ("20 nmoles", "20 nmol"),
                ("5 uL", "5 microliters"),
                ("5 uA", "5 microamps"),
                ("100 KW", "100 kilowatts"),
                ("5 KJ", "5 kilojoules"),
                ("12 KV", "12 kilovolts"),
                ("3.5 Ghz", "3.5 gigahertz"),
                ("60 khz", "60 kilohertz"),
                ("30 ma", "30 milliamps"),
                ("300 cc", "300 millilitres"),
                ("250 kcals", "250 kilocalories"),
                ("20 nanogrammes", "20 nanograms"),
                ("1013 hPa", r"101300\text{ Pa}"),
                ("20 KHz", "20 kHz"),
            )
        ),
    ],
)
def test_labels_that_contradict_each_other_are_told_apart(answer, gold, verdict):
    assert verify(rf"\boxed{{{answer}}}", gold).reason == verdict
