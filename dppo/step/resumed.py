"""Settings that a checkpoint remembers, and what a resumed run says of those that changed."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from dppo.files import encoded
from dppo.settings import TABLE


def remembered(args: Any, more: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """The settings that a run depends on, as JSON has them."""
    ours = [each.name for each in fields(args) if each in TABLE and TABLE[each].remembered]
    found = {name: getattr(args, name) for name in (*ours, *others) if hasattr(args, name)} | {**more}
    return json.loads(encoded(found, default=str))


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of a checkpoint that a run has with another value, and both values."""
    return {name: (value, now[name]) for name, value in before.items() if name in now and now[name] != value}


def warn_of(
    differing: Mapping[str, tuple[Any, Any]], effect: Callable[[str], str] = lambda name: "it holds from here"
) -> None:
    """Warn of each setting that changed, with what becomes of it.

    Args:
        differing: of ``changed``.
        effect: from a setting's name to that.
    """
    for name, (before, now) in differing.items():
        warnings.warn(f"resumed with {name}: {before!r} -> {now!r}; {effect(name)}", stacklevel=3)
