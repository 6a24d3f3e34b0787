"""The arrows between parts point one way.

errors, types, rng, files, statistics <- pruning | packing | objective <- methods <- demo, trl <- launch
launch <- verification <- comparison <- cli
data, demo <- evaluation <- launch, cli
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dppo"
SHARED = {"errors", "types", "rng", "environment", "files", "statistics"}
ALLOWED = {
    "errors": set(),
    "types": {"errors"},
    "rng": set(),
    "environment": set(),
    "files": {"errors"},
    "statistics": {"rng"},
    "pruning": SHARED,
    "packing": SHARED,
    "objective": SHARED,
    "data": SHARED,
    "methods": SHARED | {"pruning", "objective"},
    "demo": SHARED | {"pruning", "packing", "objective", "methods", "data"},
    "trl": SHARED | {"pruning", "packing", "objective", "methods", "data"},
    "evaluation": SHARED | {"data", "demo"},
    "runs": SHARED | {"pruning", "packing", "objective", "methods", "data", "demo", "evaluation", "trl"},
    "launch": SHARED | {"pruning", "packing", "objective", "methods", "data", "demo", "evaluation", "trl", "runs"},
    "verification": SHARED | {"pruning", "packing", "objective", "methods", "data", "demo", "trl", "launch", "runs"},
    "comparison": SHARED
    | {
        "pruning",
        "packing",
        "objective",
        "methods",
        "data",
        "demo",
        "evaluation",
        "trl",
        "launch",
        "verification",
        "runs",
    },
    "report": SHARED | {"methods", "runs", "comparison"},
    "cli": SHARED
    | {"pruning", "packing", "objective", "methods", "data", "demo", "evaluation", "trl", "launch", "verification"}
    | {"runs", "comparison", "report"},
}
CORE = ("pruning", "packing", "objective", "methods", "errors", "types", "rng", "files")
CORE_LIBRARIES = {"torch", "numpy"}
MOVING = {f"trl/{name}.py" for name in ("recorder", "record_lines", "run_facts", "journal", "stopwatch")}
"""Part of ``runs`` already, and about to be moved there."""
TRANSFORMERS = {"packing/attention.py", "packing/head.py"}
"""Where rows meet the models of transformers; the rest of packing is arithmetic."""


def imports(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def forbidden(part: str, names: set[str], *, standard_library: frozenset[str]) -> set[str]:
    """Imports that point the wrong way, or bring a library into the core."""
    parts = {name.split(".")[1] for name in names if name.startswith("dppo.")}
    wrong = parts - ALLOWED[part] - {part} - {"__version__"}
    if part in CORE:
        libraries = {name.split(".")[0] for name in names} - {"dppo"}
        wrong |= libraries - CORE_LIBRARIES - standard_library
    return wrong


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    import sys

    relative = path.relative_to(PACKAGE)
    part = "runs" if relative.as_posix() in MOVING else relative.parts[0].removesuffix(".py")
    wrong = forbidden(part, imports(path), standard_library=sys.stdlib_module_names)
    assert wrong == ({"transformers"} if relative.as_posix() in TRANSFORMERS else set())


def test_the_check_sees_an_arrow_that_points_up_and_a_library_in_the_core():
    import sys

    stdlib = sys.stdlib_module_names
    assert forbidden("pruning", {"dppo.objective.k3"}, standard_library=stdlib) == {"objective"}
    assert forbidden("objective", {"transformers.AutoModel"}, standard_library=stdlib) == {"transformers"}
    assert not forbidden("methods", {"dppo.pruning.Pruning", "torch.nn", "math"}, standard_library=stdlib)
