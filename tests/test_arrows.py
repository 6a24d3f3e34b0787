"""The arrows between parts point one way.

errors, install, palette, settings, groups, types, rng, files, statistics, typed <- pruning | packing | objective
pruning, packing, objective <- methods <- step <- demo, trl, verl, diffusion
demo, trl <- runs <- verification <- comparison <- report, cli
runs <- planning <- cli
grading, sandbox <- problems <- evaluation <- runs, cli; grading <- demo
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dppo"
SHARED = {
    "errors",
    "install",
    "palette",
    "settings",
    "groups",
    "types",
    "rng",
    "environment",
    "files",
    "statistics",
    "typed",
}
DATA = {"grading", "sandbox", "problems"}
STEP = SHARED | {"pruning", "objective", "methods", "step"}
RUNS = STEP | DATA | {"packing", "demo", "trl", "evaluation", "runs"}
ALLOWED = {
    "errors": set(),
    "install": set(),
    "palette": set(),
    "settings": set(),
    "groups": set(),
    "types": {"errors", "groups", "typed"},
    "rng": {"errors"},
    "environment": {"errors"},
    "files": {"errors"},
    "statistics": {"errors", "rng"},
    "typed": {"errors"},
    "pruning": SHARED,
    "packing": SHARED,
    "objective": SHARED,
    "grading": {"errors", "typed"},
    "sandbox": {"errors", "typed"},
    "problems": SHARED | {"grading", "sandbox"},
    "methods": SHARED | {"pruning", "objective"},
    "step": STEP,
    "demo": STEP | {"packing", "grading"},
    "trl": STEP | {"packing", "problems"},
    "verl": STEP | {"problems"},
    "diffusion": STEP,
    "evaluation": SHARED | DATA,
    "runs": RUNS,
    "verification": RUNS - {"evaluation"},
    "comparison": RUNS | {"verification"},
    "report": SHARED | {"methods", "runs", "comparison"},
    "planning": RUNS - {"evaluation"},
    "cli": RUNS | {"verification", "comparison", "report", "planning"},
}
CORE = ("pruning", "packing", "objective", "methods", "step", "errors", "groups", "types", "rng", "files", "typed")
CORE_LIBRARIES = {"torch", "numpy"}
LIBRARIES = {"grading": {"sympy", "latex2sympy2_extended"}, "sandbox": set()} | dict.fromkeys(CORE, CORE_LIBRARIES)
"""Answers are judged without torch, and in a worker that imports as little as can be; programs by nothing else."""
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
    if part in LIBRARIES:
        libraries = {name.split(".")[0] for name in names} - {"dppo"}
        wrong |= libraries - LIBRARIES[part] - standard_library
    return wrong


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.stem != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    import sys

    relative = path.relative_to(PACKAGE)
    part = relative.parts[0].removesuffix(".py")
    wrong = forbidden(part, imports(path), standard_library=sys.stdlib_module_names)
    assert wrong == ({"transformers"} if relative.as_posix() in TRANSFORMERS else set())


def test_the_check_sees_an_arrow_that_points_up_and_a_library_in_the_core():
    import sys

    stdlib = sys.stdlib_module_names
    assert forbidden("pruning", {"dppo.objective.k3"}, standard_library=stdlib) == {"objective"}
    assert forbidden("objective", {"transformers.AutoModel"}, standard_library=stdlib) == {"transformers"}
    found = forbidden("grading", {"dppo.problems.columns", "numpy.array"}, standard_library=stdlib)
    assert found == {"problems", "numpy"}
    assert forbidden("sandbox", {"dppo.grading.answers", "seccomp"}, standard_library=stdlib) == {"grading", "seccomp"}
    assert not forbidden("methods", {"dppo.pruning.Pruning", "torch.nn", "math"}, standard_library=stdlib)


def circle(codes: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle, from the code of each by its name; none where there is no circle.

    ``from package import module`` is an import of both: it runs the package, and takes the module out of it. A module
    that needs another of its own package names that one alone.
    """
    arrows = {}
    for name, code in codes.items():
        found = arrows[name] = set()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        found &= codes.keys()
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_by_way_of_others():
    paths = PACKAGE.rglob("*.py")
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in paths}
    codes = {name.removesuffix(".__init__"): path.read_text() for name, path in names.items()}
    assert len(codes) > 150 and not circle(codes)


def test_the_check_sees_a_circle_inside_a_function_and_one_through_a_package():
    later = {"a": "def f():\n    import b", "b": "from a import f"}
    assert set(circle(later)) == {"a", "b"}
    through = {"p": "from p.one import x", "p.one": "from p import two", "p.two": ""}
    assert set(circle(through)) == {"p", "p.one"}
    assert not circle(through | {"p.one": "from p.two import y"}) and not circle(
        through | {"p.one": "import p.two as t"}
    )


READERS = {
    "runs/reader.py",
    "runs/folder.py",
    "runs/fields.py",
    "runs/words.py",
    "comparison/folder.py",
    "comparison/curves.py",
}
"""Who reads what was run elsewhere, or a command line, needs none of what runs it: neither TRL nor torch."""
READABLE = {name.removesuffix(".py").replace("/", ".") for name in READERS} | {"errors", "files"}


def heavy(names: set[str], *, standard_library: frozenset[str]) -> set[str]:
    """Imports that bring more than numpy along."""
    ours = {name.removeprefix("dppo.") for name in names if name.startswith("dppo.")}
    libraries = {name.split(".")[0] for name in names} - {"dppo", "numpy"} - standard_library
    return libraries | {name for name in ours if not any(name.startswith(f"{module}.") for module in READABLE)}


@pytest.mark.parametrize("name", sorted(READERS))
def test_readers_need_neither_trl_nor_torch(name):
    import sys

    assert not heavy(imports(PACKAGE / name), standard_library=sys.stdlib_module_names)
    for package in {Path(name).parent, Path()}:
        assert not heavy(imports(PACKAGE / package / "__init__.py"), standard_library=sys.stdlib_module_names)


def test_the_check_sees_a_reader_that_brings_torch_along():
    import sys

    stdlib = sys.stdlib_module_names
    assert heavy({"dppo.rng.generator"}, standard_library=stdlib) == {"rng.generator"}
    assert heavy({"torch.Tensor", "numpy", "json"}, standard_library=stdlib) == {"torch"}
    assert heavy(imports(PACKAGE / "runs" / "recorder.py"), standard_library=stdlib) >= {"torch", "trl"}
