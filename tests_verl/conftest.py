"""Before verl is imported: the CPU is a platform, and one process is a group of one."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from environment import set_up  # noqa: E402

set_up()


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """Folder of the toy policy and task."""
    from toy import write

    return write(tmp_path_factory.mktemp("toy"))
