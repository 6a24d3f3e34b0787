"""docs/methods.md is what the methods say of themselves."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dppo.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"


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
    rows = {line.split("`")[1]: line for line in made.table().splitlines()[2:]}
    assert {name for name in METHODS if "**yes**" in rows[name]} == {n for n, m in METHODS.items() if m.biases()}
    assert not rows["dppo_gspo"].endswith("as `dppo` |") and "and as `dppo`" in rows["dppo_gspo"]
