"""Tables of the pages follow the files of results."""

import inspect

import pytest

from benchmarks import pages

READ = pages.read
KEYS = ("completion_rate", "prompt_rate", "rate", "prune", "keep", "flat_share")
"""Numbers of the files that select a row."""
DRAWN = {
    name: draw
    for name, draw in inspect.getmembers(pages, inspect.isfunction)
    if draw.__module__ == pages.__name__ and not inspect.signature(draw).parameters
}


def changed(found, name=""):
    if isinstance(found, dict):
        return {key: changed(value, key) for key, value in found.items()}
    if isinstance(found, list):
        return [changed(value) for value in found]
    return 0.8 * found + 0.01 if isinstance(found, float) and name not in KEYS else found


@pytest.mark.parametrize("name", DRAWN)
def test_a_changed_figure_changes_the_table(name, monkeypatch):
    table = DRAWN[name]()
    monkeypatch.setattr(pages, "read", lambda name: changed(READ(name)))
    other = DRAWN[name]()
    assert other != table and table.count("\n") == other.count("\n")
