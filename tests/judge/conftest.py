import os
import time
from pathlib import Path

import pytest


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
