"""Tables of cases as parameters."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def parameters(cases: Mapping[str, Any], slow: Collection[str] = ()) -> list[Any]:
    """One parameter for each case, named by its key; those in ``slow`` run with ``-m slow`` alone."""
    assert cases.keys() >= {*slow}
    return [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name in slow)) for name, case in cases.items()]


def one_in(count: int, cases: Mapping[str, Any]) -> list[Any]:
    """Parameters of a table of equalities with TRL: one case in so many with every change, the others are slow."""
    return parameters(cases, [name for number, name in enumerate(cases) if number % count])
