"""Methods of an engine that we override or rely on: a newer version is served if their code is the same.

``hooked.json`` in the package of an engine has their fingerprints in the version that was tested, by the path of their
class, or of their module for functions. To rely on one more, add its name with an empty fingerprint.
``python -m dppo.hooked dppo/trl/hooked.json`` writes those of the installed version, once all tests pass with it.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any


def fingerprint(method: Any) -> str:
    """A hash of the lines of a method, without blank lines and lines that are a comment; empty for other objects."""
    if not (inspect.isfunction(method) or inspect.ismethod(method)):  # every object has some that are not written
        return ""
    lines = [line.strip() for line in inspect.getsource(inspect.unwrap(method)).splitlines()]
    code = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


def changed(file: Path, listed: Callable[[str], bool] = lambda path: True) -> list[str]:
    """Methods that are not as ``file`` has them, or not there, of those whose path is ``listed``."""
    found = []
    for path, tested in json.loads(file.read_text(encoding="utf-8")).items():
        if listed(path):  # others are not imported: a part that a run does not use may fail to import
            here = _fingerprints(path, tested)
            found += [f"{path.rpartition('.')[2]}.{name}" for name in tested if here[name] != tested[name]]
    return found


def write_fingerprints(file: Path) -> None:
    """Write the fingerprints of the installed version."""
    tested = json.loads(file.read_text(encoding="utf-8"))
    found = {path: _fingerprints(path, methods) for path, methods in tested.items()}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _fingerprints(path: str, methods: Iterable[str]) -> dict[str, str]:
    try:
        owner = resolve_name(path)
    except (AttributeError, ImportError):
        owner = None
    return {name: fingerprint(getattr(owner, name, None)) for name in methods}


if __name__ == "__main__":
    write_fingerprints(Path(sys.argv[1]))
