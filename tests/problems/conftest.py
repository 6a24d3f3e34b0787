from pathlib import Path

import pytest

from dppo.grading import Verifier

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def verifier():
    """One pool for all tests that judge answers: starting workers takes most of a second."""
    with Verifier(workers=2, limit_seconds=20.0) as verifier:
        yield verifier


@pytest.fixture(scope="session")
def real_data():
    """Folder of the real mathematics problems, which are not part of the project."""
    if not SHARED.is_dir():
        pytest.skip("the real data sets are not beside this checkout")
    return SHARED
