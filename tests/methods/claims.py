"""What test files of papers, one for each, claim: objectives ``BY_HAND``, and those with equal gradients, ``ALIKE``."""

import importlib
from pathlib import Path

import dppo.methods

NO_PAPERS = ("__init__", "from_settings", "own", "settings")
WRITTEN = sorted(path.stem for path in Path(dppo.methods.__file__).parent.glob("*.py") if path.stem not in NO_PAPERS)


def claims(what):
    """All entries of the dictionaries of one name."""
    found = {}
    for paper in WRITTEN:
        found |= getattr(importlib.import_module(f"test_methods_{paper}"), what, {})
    return found
