"""Fingerprints of methods of an engine that we override: a newer version is served if they are the same."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

Hooked = Mapping[str, tuple[str, ...]]
"""Names of methods by the path of their class, or of functions by that of their module."""


def fingerprint(method: Any) -> str:
    """A hash of the lines of a method, without blank lines and lines that are a comment."""
    lines = [line.strip() for line in inspect.getsource(inspect.unwrap(method)).splitlines()]
    code = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


def fingerprints(hooked: Hooked) -> dict[str, str]:
    """Fingerprints of the installed methods by name, with empty text for a method that is not there."""
    found = {}
    for path, names in hooked.items():
        try:
            owner = resolve_name(path)
        except (AttributeError, ImportError):
            owner = None
        for name in names:
            method = getattr(owner, name, None)
            written = inspect.isfunction(method) or inspect.ismethod(method)  # not one that every object has
            found[f"{path.rpartition('.')[2]}.{name}"] = fingerprint(method) if written else ""
    return found


def changed(hooked: Hooked, file: Path) -> list[str]:
    """Installed methods that are not as they were where they were tested, by the fingerprints in ``file``."""
    tested = json.loads(file.read_text(encoding="utf-8"))
    return [name for name, digest in fingerprints(hooked).items() if tested.get(name) != digest]


def write_fingerprints(hooked: Hooked, file: Path) -> None:
    """Write the fingerprints of the installed version."""
    file.write_text(json.dumps(fingerprints(hooked), indent=1) + "\n", encoding="utf-8")
