"""The README of answer-judge: what it shows runs without torch, transformers, TRL and dppo."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"(<!-- run by test_\w+ -->\n)?^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)
ALONE = """
import sys
from importlib.machinery import PathFinder
HIDDEN, find = ("torch", "transformers", "trl", "vllm", "dppo", "dppo.lab"), PathFinder.find_spec
def find_spec(name, *rest):
    return None if name.partition(".")[0] in HIDDEN else find(name, *rest)
PathFinder.find_spec = staticmethod(find_spec)
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("_frozen")]
"""
EVALUATION = """
from evaluation_fakes import FakeJudge, fake_engine, problem_set
from answer_judge.evaluation import Protocol, compare, evaluate, read_results
from answer_judge.evaluation import prompts, samples
for folder in ("one", "two"):
    evaluate(Protocol(sets=(problem_set(24),), samples=2), fake_engine(), FakeJudge(), folder)
assert compare("one", "two").average.value == 0 and 0 < read_results("one")["average"]["pass@1"]["value"] < 1
"""


@pytest.mark.parametrize("marked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_readme_runs_by_itself(marked, confined, tmp_path):
    """Blocks that are marked run where programs can be confined."""
    code = "\n".join([*(code for mark, code in BLOCKS if bool(mark) == marked), *([] if marked else [EVALUATION])])
    code = f"{ALONE}sys.path += [{str(ROOT)!r}, {str(Path(__file__).parent / 'evaluation')!r}]\n{code}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
