"""Functions that a configuration names by their dotted path."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from dppo.errors import ConfigError


def imported(name: str, *, field: str, known: Iterable[str]) -> Callable[..., Any]:
    """The function of that dotted path, looked for in the current folder first.

    Args:
        name: such as ``package.module.function``.
        field: which field names it, for the message.
        known: names that the field takes beside dotted paths, for the message.

    Raises:
        ConfigError: if there is no such module or function.
    """
    module, _, attribute = name.rpartition(".")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{field}: {name!r} is neither one of {', '.join(known)} nor an importable dotted path ({error})."
        ) from error
    finally:
        sys.path.pop(0)
