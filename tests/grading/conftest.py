import os
import time
from pathlib import Path

import pytest

from dppo.grading.verifier import Verifier

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


@pytest.fixture
def gone():
    """Whether processes end: ``gone(pids)`` waits until all have, and says which have not after a long while."""

    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            try:
                os.kill(pid, 0)
            except OSError:
                return False
            return not Path("/proc/self").exists()

    def wait(pids):
        for _ in range(600):
            if not any(map(running, pids)):
                return []
            time.sleep(0.05)
        return [pid for pid in pids if running(pid)]

    return wait
