"""docs/methods.md is drawn from the methods' own records."""

import sys
from itertools import chain
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


def test_every_method_is_in_one_row(made):
    assert sorted(chain(*made.GROUPS)) == sorted(METHODS)
    assert made.table() in (DOCS / "methods.md").read_text()


def test_biased_methods_are_marked_and_others_not(made):
    """At their own rates, or with prompts pruned if they prune completions."""
    for name, method in METHODS.items():
        biased = bool(method.biases())
        assert (made.biased(method) == "**yes**") == biased, name
        if "prompts" in made.dropped(method).split("; "):
            further = len(method.with_rates(prompt=0.5).biases()) > len(method.biases())
            assert (made.biased(method) == "**yes**, if prompts are pruned") == (further and not biased), name


def test_nothing_stands_only_beside_methods_that_prune_at_no_level(made):
    """Cuts and tokens out of the head are levels too."""
    for name, method in METHODS.items():
        rates = (method.prompts.rate, method.completions.rate, method.tokens.rate, method.tokens.head_rate)
        prunes = any(rates) or method.rounds is not None
        assert (made.dropped(method) != "nothing") == prunes, name
        assert ("tokens" in made.dropped(method)) == method.tokens.active, name
