"""The arrows between parts point one way, in each of the three packages and between them."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "dppo.lab": ROOT / "dppo" / "lab",  # first: it is inside of the next
    "dppo": ROOT / "dppo",
    "answer_judge": ROOT / "answer-judge" / "answer_judge",
}
SHARED = {"errors", "install", "settings", "groups", "hooked", "types", "context", "moment_samples", "costs"}
SHARED |= {"rng", "environment", "files", "typed"}
STEP = SHARED | {"pruning", "objective", "methods", "step"}
ENGINE = STEP | {"session", "rewards"}
TRAINED = ENGINE | {"packing", "trl"}
REPORTED = {"runs", "comparison", "frozen", "planning", "report"}
ALLOWED: dict[str, dict[str, frozenset[str] | set[str]]] = {
    "dppo": {
        **dict.fromkeys(("errors", "install", "settings", "groups", "hooked"), frozenset()),
        "types": {"errors", "groups", "typed"},
        "moment_samples": {"errors", "groups", "rng", "typed", "types"},
        "context": {"errors", "moment_samples", "typed", "types"},
        "costs": {"errors", "types"},
        **dict.fromkeys(("rng", "files", "typed"), frozenset({"errors"})),
        "rewards": {"errors", "typed"},
        "environment": {"errors", "install"},
        **dict.fromkeys(("pruning", "packing", "objective"), SHARED),
        "methods": SHARED | {"pruning", "objective"},
        **dict.fromkeys(("step", "session"), STEP),
        "trl": ENGINE | {"packing"},
        "verl": ENGINE | {"packing"},
        "verification": TRAINED,
    },
    "answer_judge": {
        "errors": set(),
        "environment": set(),
        **dict.fromkeys(("files", "statistics", "grading", "sandbox"), frozenset({"errors"})),
        "problems": {"errors", "files", "grading", "sandbox"},
        "evaluation": {"errors", "files", "statistics", "environment", "grading", "sandbox", "problems"},
    },
    "dppo.lab": {
        **dict.fromkeys(("palette", "statistics", "shipped", "gym", "gradients", "files"), frozenset()),
        **dict.fromkeys(("judge", "commit"), frozenset()),
        "environment": {"commit"},
        "subject": {"gradients"},
        "demo": {"palette", "statistics", "subject"},
        "runs": {"demo", "environment", "files", "gym", "judge", "shipped", "statistics", "subject"},
        "comparison": {"runs", "demo", "environment", "files", "shipped", "statistics"},
        "planning": {"runs", "demo", "files", "shipped", "statistics"},
        "report": {"runs", "comparison", "palette", "statistics"},
        "frozen": {"runs", "comparison", "environment", "subject"},
        "cli": {"commit", "demo", "environment", "files", "gym", "judge", "shipped", "statistics", *REPORTED},
    },
}
"""What each part of a package may import of its own package."""
BETWEEN = {"dppo": set(), "answer_judge": set(), "dppo.lab": {"dppo"}}
"""What a package may import of the others."""
CORE = {"pruning", "packing", "objective", "methods", "step", "session"}
CORE |= SHARED - {"install", "settings", "environment"}
LIBRARIES = {
    "dppo": dict.fromkeys(CORE, frozenset({"torch", "numpy"})),
    "answer_judge": {"grading": {"sympy", "latex2sympy2_extended"}, "sandbox": set(), "files": set()},
    "dppo.lab": {},
}
"""Libraries of parts that need few: answers are judged in a worker that imports as little as can be."""
ACROSS = {
    # Where rows meet the models of transformers; the rest of packing is arithmetic.
    "dppo/packing/attention.py": {"transformers"},
    "dppo/packing/head.py": {"transformers"},
    "dppo/lab/judge.py": {"answer_judge"},  # which may not be installed; the file imports what is asked for
}
"""Files that may import more than their part."""


def imports(code: str) -> set[str]:
    """Absolute names that code imports, inside functions too: ``from package import name`` imports both."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def package_of(name: str) -> str:
    """The package that a module is in: one of ``FOLDERS``, or a library."""
    return "dppo.lab" if f"{name}.".startswith("dppo.lab.") else name.split(".")[0]


def forbidden(package: str, part: str, names: set[str]) -> set[str]:
    """Imports that point the wrong way, or bring a library into a part that does without."""
    own = {name for name in names if package_of(name) == package and name != package}
    parts = {name.removeprefix(f"{package}.").split(".")[0] for name in own}
    wrong = parts - ALLOWED[package][part] - {part} - {"__version__"}
    roots = {package_of(name) for name in names}
    wrong |= (roots & ALLOWED.keys()) - {package} - BETWEEN[package]
    if part in LIBRARIES[package]:
        wrong |= roots - ALLOWED.keys() - LIBRARIES[package][part] - sys.stdlib_module_names
    return wrong


def test_arrows_point_one_way():
    files = {path for folder in FOLDERS.values() for path in folder.rglob("*.py")}
    found = {}
    for path in sorted(files - {folder / "__init__.py" for folder in FOLDERS.values()}):
        package = next(name for name, folder in FOLDERS.items() if path.is_relative_to(folder))
        part = path.relative_to(FOLDERS[package]).parts[0].removesuffix(".py")
        if wrong := forbidden(package, part, imports(path.read_text())):
            found[path.relative_to(ROOT).as_posix()] = wrong
    assert found == ACROSS


def test_the_check_sees_an_arrow_that_points_up_and_a_library_in_the_core():
    assert forbidden("dppo", "pruning", {"dppo.objective.k3"}) == {"objective"}
    assert forbidden("dppo", "objective", {"transformers.AutoModel"}) == {"transformers"}
    assert forbidden("dppo", "trl", {"answer_judge.grading.verify", "trl.GRPOTrainer"}) == {"answer_judge"}
    assert forbidden("dppo", "trl", {"dppo.lab.runs.folder"}) == {"dppo.lab"}
    assert forbidden("answer_judge", "problems", {"dppo.rewards.guarded"}) == {"dppo"}
    assert forbidden("answer_judge", "sandbox", {"answer_judge.grading.answers", "seccomp"}) == {"grading", "seccomp"}
    assert forbidden("dppo.lab", "runs", {"dppo.lab.cli.main", "dppo.trl", "answer_judge.x"}) == {"cli", "answer_judge"}
    assert not forbidden("dppo", "methods", {"dppo.pruning.Pruning", "torch.nn", "math"})


HEAVY = ("torch", "transformers", "trl", "vllm")
READERS = "runs.reader runs.folder runs.fields runs.words shipped comparison.curves files"
LOADED = "import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"


@pytest.mark.parametrize(
    ("module", "strangers"),
    [
        # No file of dppo names the other two, as the arrows show; what TRL brings along seldom changes.
        pytest.param(
            "dppo.trl", {"answer_judge", "dppo.lab", "latex2sympy2_extended", "math_verify"}, marks=pytest.mark.slow
        ),
        ("answer_judge.grading", {"dppo", "dppo.lab", "numpy", "datasets", *HEAVY}),
        ("answer_judge.sandbox", {"dppo", "dppo.lab", "numpy", "datasets", "sympy", *HEAVY}),
        ("answer_judge.evaluation.prompts", {"dppo", "dppo.lab", *HEAVY}),
        ("dppo.lab.gym", {"answer_judge", "reasoning_gym", "numpy", *HEAVY}),
        (", ".join(f"dppo.lab.{reader}" for reader in READERS.split()), {"answer_judge", "dppo.trl", *HEAVY}),
        ("dppo.settings", {"answer_judge", "dppo.lab", "numpy", *HEAVY}),
    ],
)
def test_a_package_loads_nothing_of_the_others(module, strangers):
    ran = subprocess.run([sys.executable, "-c", LOADED.format(module=module)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    loaded = set(ran.stdout.split())
    assert set(module.split(", ")) <= loaded
    assert not {name for name in loaded for stranger in strangers if f"{name}.".startswith(f"{stranger}.")}


def circle(codes: dict[str, str]) -> set[str]:
    """Modules that import each other in a circle, from the code of each by its name."""
    try:
        TopologicalSorter({name: imports(code) & codes.keys() for name, code in codes.items()}).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def test_no_module_imports_itself_by_way_of_others():
    codes = {}
    for folder in (FOLDERS["dppo"], FOLDERS["answer_judge"]):
        for path in folder.rglob("*.py"):
            name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
            codes[name.removesuffix(".__init__")] = path.read_text()
    assert len(codes) > 150 and not circle(codes)
    assert circle({"a": "def f():\n    import b", "b": "from a import f"}) == {"a", "b"}
    through = {"p": "from p.one import x", "p.one": "from p import two", "p.two": ""}
    assert circle(through) == {"p", "p.one"} and not circle(through | {"p.one": "from p.two import y"})
