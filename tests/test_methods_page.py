"""docs/methods.md is what the methods say of themselves."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dppo.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS.parent / "benchmarks" / "results"


@pytest.fixture
def made(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import methods_table

    yield methods_table
    sys.modules.pop("methods_table")


def test_the_table_is_the_methods_own(made, monkeypatch):
    page = (DOCS / "methods.md").read_text()
    assert made.table() in page
    monkeypatch.setattr(made, "METHODS", {**METHODS, "dppo": replace(METHODS["dppo"], deviations=("another",))})
    assert made.table() not in page


def test_biased_methods_are_marked_and_others_not(made):
    """By what they prune: a row that says prompts are has to say what that does."""
    table = made.table()
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `") and "rows |" not in line}
    own = {name for name in METHODS if "| **yes**" in rows[name]}
    assert own == {name for name, method in METHODS.items() if method.biases()}
    drops = {name: row.split(" | ")[2].split("; ") for name, row in rows.items()}
    prompts = {name: METHODS[name].with_rates(prompt=0.5) for name in METHODS if "prompts" in drops[name]}
    assert {name for name in METHODS if "with prompts pruned **yes**" in rows[name]} == {
        name for name, pruned in prompts.items() if len(pruned.biases()) > len(METHODS[name].biases())
    }
    (note,) = re.findall(r"with prompts pruned \*\*yes\*\*: (\d+) ", rows["dppo_gdpo"])
    assert f"\n{note}. The decoupled advantage is biased under prompt pruning" in table
    assert {rows[name].split(" | ")[3] for name in ("dppo", "dppo_dapo", "infobatch")} == {"no"}


def test_nothing_stands_only_beside_methods_that_prune_at_no_level(made):
    """Cuts and tokens out of the head are levels too."""
    for name, method in METHODS.items():
        rates = (method.prompts.rate, method.completions.rate, method.tokens.rate, method.tokens.head_rate)
        prunes = any(rates) or method.rounds is not None
        assert (made.dropped(method) != "nothing") == prunes, name
        assert ("tokens" in made.dropped(method)) == method.tokens.active, name


def test_methods_that_are_said_to_be_measured_are_in_the_files_of_results(made):
    """Figures without training are those of frozen.json; a page that a row points to names the method."""
    frozen = {row["name"] for row in json.loads((RESULTS / "frozen.json").read_text())["rows"]} & set(METHODS)
    assert {name for name in METHODS if made.FROZEN in made.MEASURED.get(name, "")} == frozen
    for name, where in made.MEASURED.items():
        for page in re.findall(r"\]\((\w+\.md)", where):
            assert re.search(rf"\b{name}", (DOCS / page).read_text()), (name, page)
