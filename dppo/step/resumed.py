"""Settings in a checkpoint, and warnings of those that a resumed run has changed."""

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from dppo.files import encoded
from dppo.settings import NO_TRACE, TABLE


def remembered(args: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run depends on, by ``TABLE`` or ``NO_TRACE``, and ``more``, as JSON values."""
    found = {}
    for each in fields(args):
        leaves_trace = not each.name.startswith(NO_TRACE) or each.name == "dataloader_drop_last"
        if TABLE[each].remembered if each in TABLE else leaves_trace:
            found[each.name] = getattr(args, each.name)
    # A checkpoint may be published, and ``model_init_kwargs`` have a token.
    safe = {k: {**v, "token": None} if isinstance(v, dict) and "token" in v else v for k, v in found.items()}
    return json.loads(encoded(safe | {**more}, default=lambda value: re.sub(r" at 0x\w+", "", str(value))))


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Old and new value of each setting that a checkpoint and a run have with different values."""
    return {name: (value, now[name]) for name, value in before.items() if name in now and now[name] != value}


def warn_of(
    differing: Mapping[str, tuple[Any, Any]], effect: Callable[[str], str] = lambda name: "it holds from here"
) -> None:
    """Warn of each setting that ``changed``, with its ``effect``, a clause from its name."""
    for name, (before, now) in differing.items():
        warnings.warn(f"resumed with {name}: {before!r} -> {now!r}; {effect(name)}", stacklevel=3)
