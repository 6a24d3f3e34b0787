"""A method of one object that another takes the place of for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def method_replaced(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """A context in which ``owner.name`` is ``method``; then it is again as it was, on the object or on its class."""
    before = {name: vars(owner)[name]} if name in vars(owner) else {}
    setattr(owner, name, method)
    try:
        yield
    finally:
        delattr(owner, name)
        vars(owner).update(before)
