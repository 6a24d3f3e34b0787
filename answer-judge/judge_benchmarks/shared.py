"""What both benchmarks share: options, and the file that figures are written to."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answer_judge.environment import environment
from answer_judge.files import write_json


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with ``--output``; its text is the first line of ``doc``."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where to write the figures")
    return parser


def write(path: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with machine and versions to a file, if one is named."""
    if path is not None:
        write_json(path, {"rows": list(rows), "environment": environment()})
