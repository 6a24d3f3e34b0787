"""What the test file of each paper says of its methods, for the tests that hold all methods to it.

``UNBIASED`` says by name whether the gradient is, with both levels pruned as far as the preset prunes them at all;
``BY_HAND`` the objective written out by hand, where it is another than GRPO's, and ``ALIKE`` those that have its
gradient on the tiny policy.
"""

import importlib
from pathlib import Path

import dppo.methods

NO_PAPERS = ("__init__", "from_settings", "own", "pairs", "settings")
WRITTEN = sorted(path.stem for path in Path(dppo.methods.__file__).parent.glob("*.py") if path.stem not in NO_PAPERS)


def claims(what):
    """All entries of the dictionaries of one name."""
    found = {}
    for paper in WRITTEN:
        found |= getattr(importlib.import_module(f"test_methods_{paper}"), what, {})
    return found
