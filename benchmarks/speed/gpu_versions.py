"""Versions of a machine, what the packages there ask of each other, and if TRL can be imported.

python3 -m benchmarks.speed.gpu_versions PACKAGE ...

To be run before anything else on a machine whose packages are not known. Exits with 1 if TRL cannot be imported.
"""

import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

IMPORTS = ("torch", "transformers", "datasets", "peft", "trl.trainer.grpo_trainer", "dppo.trl")


def installed(name: str) -> str | None:
    """Version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def unmet(package: str) -> Iterator[str]:
    """Requirements of an installed package that this machine does not meet, in words."""
    for line in requires(package) or []:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = installed(wanted.name)
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            yield f"{package} needs {wanted.name}{wanted.specifier}, and {found or 'none'} is installed"


def import_line(name: str) -> tuple[str, bool]:
    """Seconds that an import took, or its error; and True if it succeeded."""
    start = time.perf_counter()
    try:
        importlib.import_module(name)
    except Exception as error:  # a package that does not fit another fails in any way
        return f"import {name}: {type(error).__name__}: {error}", False
    return f"import {name}: {time.perf_counter() - start:.1f} s", True


def main(packages: Sequence[str]) -> int:
    """Print all lines."""
    print(f"Python {sys.version.split()[0]}")
    for package in packages:
        found = installed(package)
        print(f"{package} {found or 'is not installed'}")
        for line in unmet(package) if found else ():
            print(f"  {line}")
    lines = [import_line(name) for name in IMPORTS]
    print(*(text for text, _ in lines), sep="\n", flush=True)
    return 0 if all(succeeded for _, succeeded in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
