"""Tables of cases as parameters."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def parameters(cases: Mapping[str, Any], slow: Collection[str] = ()) -> list[Any]:
    """One parameter set for each case, named by its key; those in ``slow`` run with ``-m slow`` alone."""
    assert cases.keys() >= {*slow}
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=[pytest.mark.slow] if name in slow else []
        )
        for name, case in cases.items()
    ]
