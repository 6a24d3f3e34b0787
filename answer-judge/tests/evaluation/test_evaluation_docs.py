"""What docs/evaluation.md says of benchmarks, verdicts and figures is what the library does."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evaluation.md").read_text()
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


VERDICTS = [
    (text, cells[1].strip("`"))
    for cells in CELLS
    if len(cells) == 3 and cells[1].strip("`") in ("right", "wrong", "no_answer", "unparsed")
    for text in re.findall(r"`([^`]+)`", cells[0])
]


@pytest.mark.parametrize(("text", "reason"), VERDICTS)
def test_verdicts_on_the_example(text, reason, verifier):
    assert verifier.verify(text, "5").reason == reason
