import os
import time
from pathlib import Path

import pytest


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
