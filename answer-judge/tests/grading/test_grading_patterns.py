"""Each expression and table of the readers has an example beside it that holds, and order is what the comments say."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import answer_judge.grading as grading
from answer_judge.grading import compare, reading
from answer_judge.grading.patterns import EXAMPLES
from answer_judge.grading.rules import Grading
from answer_judge.grading.text import tidy

for module in pkgutil.iter_modules(grading.__path__, f"{grading.__name__}."):
    importlib.import_module(module.name)


def holds(example):
    """True if the example is found, in the whole text if that is what it names."""
    if example.replacement is not None:
        return example.regex.sub(example.replacement, example.text) == example.result
    find = example.regex.fullmatch if example.text == example.result else example.regex.search
    found = find(example.text)
    return found is not None and found[0] == example.result


def test_every_example_holds():
    assert [example for example in EXAMPLES if not holds(example)] == [] and len(EXAMPLES) > 150


def test_no_expression_is_made_without_an_example():
    """``test_grading_growth.py`` attacks those that are registered."""
    files = [path for path in Path(grading.__file__).parent.glob("*.py") if path.name != "patterns.py"]
    assert [path.name for path in files if re.search(r"\bre\.[a-z]+\(", path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("kind", "example"), reading._KINDS, ids=[kind.__name__ for kind, _ in reading._KINDS])
def test_every_kind_is_the_first_to_take_its_example(kind, example):
    text = tidy(example)
    taken = (each for each, _ in reading._KINDS if each(reading._Reader(None, False), text) is not None)
    assert next(taken) is kind


@pytest.mark.parametrize(
    "applies, by, pair", compare._COMPARISONS, ids=[by.__name__ for _, by, _ in compare._COMPARISONS]
)
def test_every_comparison_is_the_first_for_its_example_and_finds_it_the_same(applies, by, pair):
    answer, gold = map(reading.read, pair)
    assert next(found for fits, found, _ in compare._COMPARISONS if fits(gold) or fits(answer)) is by
    assert by(gold, answer, Grading())
