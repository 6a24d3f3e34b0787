"""What the site is made of: all parts of the library, docstrings that Markdown can show, and a sample report."""

import re
from pathlib import Path

from dppo_lab.report import write_report

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "sample_compare"
PACKAGES = ("dppo", "answer_judge", "dppo_lab")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_every_part_of_the_map_is_in_the_reference():
    parts = {
        f"{package}.{path.stem}"
        for package in PACKAGES
        for path in (ROOT / package).iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    pages = {path: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
    shown = set(re.findall(rf"^::: ((?:{'|'.join(PACKAGES)})\.\w+)$", "\n".join(pages.values()), flags=re.MULTILINE))
    assert len(parts) > 30 and parts - shown == set()
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [path.name for path in pages if f"api/{path.name}" not in nav] == []


def test_the_sample_report_is_whole(tmp_path):
    files = [path for path in SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    written = write_report([SAMPLE], tmp_path / "sample.html")
    assert written.missing == ()
    page = written.page.read_text()
    assert all(re.search(rf"\b{name}\b", page) for name in ("trl", "grpo", "cppo", "dppo"))
    assert "not show" not in page and "damaged" not in page


def test_records_of_the_sample_name_no_place_of_the_machine_that_made_them():
    found = [
        path.name
        for path in SAMPLE.rglob("*")
        if path.is_file() and re.search(r"/(tmp|home|root|work|Users)/", path.read_text())
    ]
    assert found == []
