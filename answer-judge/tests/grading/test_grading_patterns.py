"""Every expression and table of the readers has an example beside it that holds, and order is what the comments say."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import answer_judge.grading as grading
import answer_judge.grading.judge as judge_module
from answer_judge.grading import compare, reading
from answer_judge.grading.judge import judge
from answer_judge.grading.patterns import EXAMPLES, PatternExample, pattern
from answer_judge.grading.rules import Grading
from answer_judge.grading.text import tidy

FOLDER = Path(grading.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
for module in pkgutil.iter_modules(grading.__path__, f"{grading.__name__}."):
    importlib.import_module(module.name)


def holds(example):
    """What the example says, of a match of the whole text where that is what it names."""
    if example.replacement is not None:
        return example.regex.sub(example.replacement, example.text) == example.result
    find = example.regex.fullmatch if example.text == example.result else example.regex.search
    found = find(example.text)
    return found is not None and found[0] == example.result


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.text}")
def test_every_example_holds(example):
    assert holds(example)


def bare_expressions(source):
    """The calls of functions of the module ``re``."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(node)[:80] for node in calls if ast.unparse(node.func).startswith("re.")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_expression_is_made_without_an_example(path):
    assert path.name == "patterns.py" or bare_expressions(path.read_text()) == []
    assert len(EXAMPLES) > 200


def test_the_checks_above_can_fail():
    assert bare_expressions('import re\nfound = re.search(r"x", text)') == ["re.search('x', text)"]
    wrong = [("12", "21", None), ("ab", "ab", None), ("12", "1x", "x")]
    assert not any(holds(PatternExample(re.compile(r"\d"), given, result, new)) for given, result, new in wrong)
    with pytest.raises(ValueError, match="'x' has no example"):
        pattern("x", {})


@pytest.mark.parametrize(("kind", "example"), reading._KINDS, ids=[kind.__name__ for kind, _ in reading._KINDS])
def test_every_kind_is_the_first_to_take_its_example(kind, example):
    for earlier, _ in reading._KINDS:
        found = earlier(reading._Reader(None, False), tidy(example))
        if found is not None:
            assert earlier is kind
            return


KIND = {kind.__name__: (kind, example) for kind, example in reading._KINDS}


def test_kinds_in_another_order_lose_answers(monkeypatch):
    task = {"answer": "70,110", "gold": "110, 70"}
    assert judge(task) == "right"
    rows = list(reading._KINDS)
    rows.insert(rows.index(KIND["number"]), rows.pop(rows.index(KIND["thousands"])))
    monkeypatch.setattr(reading, "_KINDS", tuple(rows))
    judge_module._read.cache_clear()
    assert judge(task) != "right"


@pytest.fixture(autouse=True)
def no_reading_is_remembered():
    """What is read in another order must not be found by the tests after."""
    yield
    judge_module._read.cache_clear()


@pytest.mark.parametrize(
    "applies, by, pair", compare._COMPARISONS, ids=[by.__name__ for _, by, _ in compare._COMPARISONS]
)
def test_every_comparison_is_the_first_for_its_example_and_finds_it_the_same(applies, by, pair):
    answer, gold = map(reading.read, pair)
    assert next(found for fits, found, _ in compare._COMPARISONS if fits(gold) or fits(answer)) is by
    assert by(gold, answer, Grading())
