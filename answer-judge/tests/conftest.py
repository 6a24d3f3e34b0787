import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: there is one test per core already

import pytest
from hypothesis import settings

from answer_judge.errors import ConfigError
from answer_judge.grading import Verifier
from answer_judge.sandbox import Sandbox

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def confined():
    """Skips where the system cannot confine a program: the library then refuses to run any."""
    with Sandbox(workers=1) as sandbox:
        try:
            assert sandbox.layers
        except ConfigError as refused:
            pytest.skip(str(refused))


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
    """Those of some processes that have not ended after a long while."""

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
            if not (left := [pid for pid in pids if running(pid)]):
                break
            time.sleep(0.05)
        return left

    return wait
