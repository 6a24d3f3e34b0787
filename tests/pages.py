"""The blocks of code on the pages, each run by a test or marked with the reason why it is not.

A mark is a comment on the line before a block, which no reader sees: ``<!-- not run: needs a GPU -->``, or
``<!-- run by test_of_this_name -->`` where a test gives the block names that the page does not.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "answer-judge/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "answer-judge" / "docs").rglob("*.md"))
PAGES += sorted((ROOT / "examples").glob("*/README.md"))
LANGUAGES = {"python", "bash", "yaml", "json", "text", "bibtex"}
"""``text`` is what nobody types: output, trees of files, arrows between parts."""
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```[ ]*$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (not run: \S.*|run by (?P<test>test_\w+)) -->\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    marked: bool
    test: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def all_blocks(page: Path, text: str | None = None) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text() if text is None else text
    found = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        mark = _MARK.search(before.rstrip("\n"))
        indent, language, code = fence.groups()
        code = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        line, test = before.count("\n") + 1, mark and mark["test"]
        found.append(
            Block(page=page, line=line, language=language.strip(), code=code, marked=bool(mark), test=test or None)
        )
    return found


def blocks(page: Path, language: str) -> list[str]:
    return [block.code for block in all_blocks(page) if block.language == language]


def lines_of(code: str) -> list[str]:
    """The commands of a shell block: lines that go on joined, comments left out, nothing empty."""
    text = re.sub(r"(^|\s)#.*", "", code.replace("\\\n", " "), flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines() if line.strip()]
