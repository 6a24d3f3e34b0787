"""Tables of the pages follow the files of results, and an outdated page is found."""

import inspect

import pytest
from cogapp import Cog

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


def test_an_outdated_page_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- [[[cog import cog; from benchmarks import pages; cog.outl(pages.ranks()) ]]] -->\n"
        f"{pages.ranks().replace('.48', '.49')}\n<!-- [[[end]]] -->\n"
    )
    check = ["cog", "--check", "--verbosity=0", str(page)]
    assert Cog().main(check) == 5
    assert Cog().main(["cog", "-r", "--verbosity=0", str(page)]) == 0
    assert pages.ranks() in page.read_text() and Cog().main(check) == 0
