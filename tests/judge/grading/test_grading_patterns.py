"""Every expression and table of the readers has an example beside it that holds, and order is what the comments say."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import answer_judge.grading as grading
import answer_judge.grading.judge as judge_module
from answer_judge.grading import canonical, compare, reading, text, unit_names, units
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.judge import judge
from answer_judge.grading.patterns import EXAMPLES, Example, pattern, rewritten
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
    assert not any(holds(Example(re.compile(r"\d"), given, result, new)) for given, result, new in wrong)
    with pytest.raises(ValueError, match="'x' has no example"):
        pattern("x", {})


@pytest.mark.parametrize(("kind", "example"), reading._KINDS, ids=[kind.__name__ for kind, _ in reading._KINDS])
def test_every_kind_is_the_first_to_take_its_example(kind, example):
    for earlier, _ in reading._KINDS:
        found = earlier(reading._Reader(None, False), tidy(example))
        if found is not None:
            assert earlier is kind
            return


@pytest.mark.parametrize("token", canonical._MAKERS)
def test_every_maker_writes_its_example(token):
    _, example, written = canonical._MAKERS[token]
    assert example.startswith(token) and canonical.canonical(example)[0] == written


@pytest.mark.parametrize("name", text._SPELT)
def test_every_spelling_is_another_way_of_writing(name):
    assert tidy(rf"x\{name} y") == tidy(rf"x{text._SPELT[name]} y") != tidy(rf"x\{name}s y")


def test_every_spelling_of_a_unit_is_read_as_one():
    for spelling, (base, factor) in unit_names.TABLE.items():
        found = units.parse_unit(spelling)
        assert found.powers == tuple(sorted(base.items())) and found.factor == factor and not found.label, spelling


def swapped(table, earlier, later):
    """The table with one row moved behind another."""
    rows = list(table)
    rows.insert(rows.index(later), rows.pop(rows.index(earlier)))
    return tuple(rows)


KIND = {kind.__name__: (kind, example) for kind, example in reading._KINDS}


@pytest.mark.parametrize(
    ("earlier", "later", "answer", "gold"),
    [
        ("thousands", "number", "70,110", "110, 70"),
        ("number", "listing", "1,234.5", "1234.5"),
        ("labelled", "text", r"\text{D. east}", "D"),
        ("text", "listing", "Yes, it is.", "yes"),
        ("compound", "listing", "1 hour and 30 minutes", "90 minutes"),
        ("listing", "expression", "4 and -9", "-9, 4"),
        ("relation", "expression", "(x+1)(x+2)=0", "0=(x+2)(x+1)"),
        ("set_builder", "bracketed", r"\{x : x > 3\}", r"(3,\infty)"),
    ],
)
def test_kinds_in_another_order_lose_answers(earlier, later, answer, gold, monkeypatch):
    task = {"answer": answer, "gold": gold}
    assert judge(task) == "right"
    monkeypatch.setattr(reading, "_KINDS", swapped(reading._KINDS, KIND[earlier], KIND[later]))
    judge_module._read.cache_clear()
    assert judge(task) != "right"


@pytest.fixture(autouse=True)
def no_reading_is_remembered():
    """What is read in another order must not be found by the tests after."""
    yield
    judge_module._read.cache_clear()


def row(table, example):
    """The row of a table of rewritings that has this example."""
    regex = next(each.regex for each in EXAMPLES if each.replacement is not None and each.text == example)
    return next(each for each in table if each[0] is regex)


@pytest.mark.parametrize(
    ("earlier", "later", "given", "right"),
    [
        (r"1,\!250\,000", r"5\!x", r"32,\!348", "32348"),
        (r"1,\!250\,000", r"(1,\ 2)", r"1\,000", "1000"),
        (r"\dfrac{1}{2}", r"\frac12", r"\tfrac12", r"\frac{1}{2}"),
        (r"\dfrac{1}{2}", r"\frac1{19}", r"\dfrac9{19}", r"\frac{9}{19}"),
    ],
)
def test_layout_in_another_order_is_read_otherwise(earlier, later, given, right):
    assert rewritten(given, text._LAYOUT) == right
    other = swapped(text._LAYOUT, row(text._LAYOUT, earlier), row(text._LAYOUT, later))
    assert rewritten(given, other) != right


def test_fractions_and_dots_are_spelt_alike_before_fractions_of_words_and_periods():
    """Steps of ``tidy``: each needs the one before it."""
    assert tidy(r"12 \dfrac{\text{m}}{\text{s}}") == r"12 \text{m}/\text{s}"
    assert rewritten(r"12 \dfrac{\text{m}}{\text{s}}", text._SPELLINGS) == r"12 \dfrac{\text{m}}{\text{s}}"
    assert tidy(r"0.333\ldots") == r"0.\overline{3}"
    assert rewritten(r"0.333\ldots", text._SPELLINGS) == r"0.333\ldots"


@pytest.mark.parametrize(
    "applies, by, pair", compare._COMPARISONS, ids=[by.__name__ for _, by, _ in compare._COMPARISONS]
)
def test_every_comparison_is_the_first_for_its_example_and_finds_it_the_same(applies, by, pair):
    answer, gold = map(reading.read, pair)
    assert next(found for fits, found, _ in compare._COMPARISONS if fits(gold) or fits(answer)) is by
    assert by(gold, answer, Grading())


COMPARISON = {row[1].__name__: row for row in compare._COMPARISONS}


@pytest.mark.parametrize(
    ("earlier", "later", "answer", "gold"),
    [
        ("_either", "_same_texts", "D", r"\text{(D)}"),
        ("_either", "_same_items", "250, 81", "81,250"),
        ("_same_named", "_same_items", "(3,-8)", "(x,y)=(3,-8)"),
        ("_same_named", "_same_matrices", r"x=\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("_same_equations", "_same_items", r"A \cup B=\{1,2\}", r"\{1,2\}"),
        ("_same_regions", "_same_items", r"[6,\infty)", r"k \ge 6"),
        ("_same_matrices", "_same_items", r"\begin{pmatrix}1\\2\\3\end{pmatrix}", "(1,2,3)"),
    ],
)
def test_comparisons_in_another_order_lose_answers(earlier, later, answer, gold, monkeypatch):
    task = {"answer": answer, "gold": gold}
    assert judge(task) == "right"
    other = swapped(compare._COMPARISONS, COMPARISON[earlier], COMPARISON[later])
    monkeypatch.setattr(compare, "_COMPARISONS", other)
    assert judge(task) == "wrong"


def test_a_text_is_no_formula_of_a_model():
    """What no kind takes is unreadable, not guessed."""
    with pytest.raises(Unreadable):
        reading.read("__import__('os')")
