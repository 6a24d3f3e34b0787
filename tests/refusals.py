"""What a wrong call is refused with: the kind of error and the names that its message must hold.

A test says which error and which fields, values or files it names. The sentence itself is no test's business, so it may
be written better without one failing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(kind: type[BaseException], *named: object) -> Iterator[pytest.ExceptionInfo]:
    """Passes where the block raises ``kind`` with a message that holds each of ``named`` as text."""
    with pytest.raises(kind) as info:
        yield info
    missing = [name for name in named if str(name) not in str(info.value)]
    assert not missing, f"{missing} not named in: {info.value}"
