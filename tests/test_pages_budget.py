"""Pages stay short, and each begins with what it is for."""

import pytest
from pages import ROOT

MOST_WORDS = {"README.md": 900, "docs": 30_000}
"""A page that grows has to make room for it."""


def words(name: str) -> int:
    """Words of a page, or of all pages of a folder: code and cells of tables count, the bars between cells do not."""
    pages = [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*.md")
    return sum(any(map(str.isalnum, word)) for page in pages for word in page.read_text().split())


@pytest.mark.parametrize("name", MOST_WORDS)
def test_pages_stay_short(name):
    assert words(name) <= MOST_WORDS[name]


def test_every_page_says_first_what_a_reader_can_do_after_it():
    pages = list((ROOT / "docs").glob("*.md"))
    assert [page.name for page in pages if "After this page you " not in page.read_text()[:400]] == []
