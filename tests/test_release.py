"""What is released: an sdist that builds the wheel by itself, and a wheel that works where there is no clone."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import dppo
from dppo.lab.commit import COMMIT_FILE, commit

ROOT = Path(__file__).parents[1]
PACKAGES = ("dppo",)
LEFT_OUT = re.compile(r"examples/(sample_compare/.*|.*\.ipynb)")


def test_one_version_is_written_everywhere_and_the_changelog_begins_with_it():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dppo.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] in ("Unreleased", dppo.__version__) and dppo.__version__ in headings


def ran(words, folder, **variables):
    """What a command prints, without this clone among the modules it finds."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")}
    done = subprocess.run([*map(str, words)], cwd=folder, env=kept | variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source, folder):
    """The sdist of a folder, and the wheel that is built from it."""
    ran([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source], folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that was built from it."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def tracked(*folders):
    """Files of the clone by path, with examples and pages where the wheel has them."""
    listed = ran(["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders], ROOT).splitlines()
    kept = [path for path in listed if (ROOT / path).is_file() and not LEFT_OUT.fullmatch(path)]
    return {re.sub(r"^(examples|docs)/", r"dppo/lab/\1/", path): path for path in kept}


def test_every_file_of_the_packages_and_all_examples_are_in_both(built):
    sdist, wheel = built
    files = tracked(*PACKAGES, "examples", ":(glob)docs/*.md")
    assert any(path.endswith("template.html") for path in files) and "dppo/lab/examples/embedded.yaml" in files
    with zipfile.ZipFile(wheel) as packed:
        inside = {name: packed.read(name) for name in packed.namelist()}
    assert {path for path in files if path not in inside} == set()
    assert all(inside[path] == (ROOT / source).read_bytes() for path, source in files.items())
    own = {name for name in inside if name.split("/")[0] in PACKAGES}
    assert own - files.keys() == {f"dppo/{COMMIT_FILE.name}"}, "and nothing else but the commit"
    assert {name.split("/")[0] for name in inside} == {*PACKAGES, f"dppo-{dppo.__version__}.dist-info"}
    with tarfile.open(sdist) as packed:
        members = {member.name.partition("/")[2]: member for member in packed.getmembers()}
    needed = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"}
    assert {*files.values(), *needed} <= members.keys()
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]


def test_a_registry_shows_the_readme_without_broken_links(built):
    with zipfile.ZipFile(built[1]) as packed:
        (metadata,) = [packed.read(name).decode() for name in packed.namelist() if name.endswith("METADATA")]
    page = metadata.partition("\n\n")[2]
    assert page.startswith("# dppo") and "method and rates" in page and "<!--" not in page
    assert not re.findall(r"\]\((?!https:|#)", page) and len(re.findall(r"\]\(", (ROOT / "README.md").read_text())) > 20


def test_the_judge_is_a_distribution_of_its_own(tmp_path):
    """One package in its wheel, which grades where neither dppo nor torch is."""
    _, wheel = build(ROOT / "answer-judge", tmp_path)
    with zipfile.ZipFile(wheel) as packed:
        roots = {name.split("/")[0] for name in packed.namelist()}
        (metadata,) = [packed.read(name).decode() for name in packed.namelist() if name.endswith("METADATA")]
        packed.extractall(tmp_path / "site")
    assert len(roots) == 2 and "answer_judge" in roots and not re.search(r"^Requires-Dist: dppo", metadata, re.M)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "sys.modules |= dict.fromkeys(('dppo', 'torch', 'numpy'))\n"
        "from answer_judge.grading import verify; import answer_judge\n"
        r"print(verify(r'\boxed{\frac{1}{2}}', '0.5').reason, answer_judge.__file__)"
    )
    reason, place = ran([sys.executable, "-c", code, tmp_path / "site"], tmp_path).split()
    assert reason == "right" and Path(place).is_relative_to(tmp_path)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Programs of an environment with the wheel, where the packages it needs are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    ran([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    python = folder / "bin" / "python"
    ran([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[1]], folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_has_its_commit_its_pages_and_its_examples_and_runs_the_demo(installed, tmp_path):
    code = "import dppo, dppo.lab; print(dppo.__file__, dppo.lab.__file__, sep='\\n')"
    found = ran([installed / "python", "-c", code], tmp_path).splitlines()
    assert len(found) == 2 and all(Path(path).is_relative_to(installed.parent) for path in found)
    assert ran([installed / "dppo", "--version"], tmp_path) == f"dppo {dppo.__version__}, commit {commit()}\n"
    assert ran([installed / "dppo", "docs", "methods"], tmp_path).startswith("# Methods")
    for name in ("countdown", "embedded"):
        ran([installed / "dppo", "example", name], tmp_path)
    assert (tmp_path / "examples" / "countdown" / "task.py").is_file()
    assert "plan" in ran([installed / "dppo", "train", "examples/embedded.yaml", "--dry_run"], tmp_path)
    assert "dppo" in ran([installed / "dppo", "demo"], tmp_path)
    assert list(tmp_path.rglob("results.json"))
