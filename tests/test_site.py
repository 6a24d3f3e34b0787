"""What the site is made of: all parts of the library, and the records of a sample report."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "sample_compare"
PACKAGES = {
    "dppo": ROOT / "dppo",
    "answer_judge": ROOT / "answer-judge" / "answer_judge",
    "dppo.lab": ROOT / "dppo" / "lab",
}


def test_every_part_of_the_map_is_in_the_reference():
    parts = {
        f"{package}.{path.stem}"
        for package, folder in PACKAGES.items()
        for path in folder.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
    }
    folders = (ROOT / "docs" / "api", ROOT / "answer-judge" / "docs" / "api")
    pages = {path: path.read_text() for folder in folders for path in folder.glob("*.md")}
    shown = set(re.findall(rf"^::: ((?:{'|'.join(PACKAGES)})\.\w+)$", "\n".join(pages.values()), flags=re.MULTILINE))
    assert len(parts) > 30 and parts - shown == {"dppo.lab"}  # whose parts are listed themselves
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [path.name for path in pages if f"api/{path.name}" not in nav] == []


def test_records_of_the_sample_are_small_and_name_no_place_of_the_machine_that_made_them():
    """What is made of them is tested with the report."""
    texts = {str(path): path.read_text() for path in SAMPLE.rglob("*") if path.is_file()}
    assert sum(map(len, texts.values())) < 300_000
    assert [name for name, text in texts.items() if re.search(r"/(tmp|home|root|work|Users)/", text)] == []
