import pytest
from sandbox_programs import LIMITS

from answer_judge.sandbox import Sandbox
from answer_judge.sandbox.servers import bubblewrap


@pytest.fixture(autouse=True)
def _confined(confined):
    """All of these run programs."""


@pytest.fixture(scope="session", params=["bubblewrap", "alone"])
def sandbox(request, confined):
    """A sandbox in bubblewrap, where that is installed, and one without it."""
    if request.param == "bubblewrap" and bubblewrap() is None:
        pytest.skip("bubblewrap is not installed")
    with Sandbox(workers=1, limits=LIMITS, wrapper=None if request.param == "bubblewrap" else "") as made:
        yield made
