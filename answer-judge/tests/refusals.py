"""Assertions about a wrong call: the kind of error, and the names that its message must hold."""

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


@contextmanager
def warned(*named: object) -> Iterator[pytest.WarningsRecorder]:
    """Passes where the block warns a user with a message that holds each of ``named`` as text."""
    with pytest.warns(UserWarning) as record:
        yield record
    told = [str(warning.message) for warning in record]
    assert any(all(str(name) in message for name in named) for message in told), f"{named} not named in: {told}"
