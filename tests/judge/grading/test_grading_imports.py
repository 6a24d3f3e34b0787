"""Answers are judged where there is no torch: in the caller, and in the workers it starts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
EVERY_MODULE = """
import importlib, pkgutil, answer_judge.grading
for module in pkgutil.iter_modules(answer_judge.grading.__path__, "answer_judge.grading."):
    importlib.import_module(module.name)
"""


def without_torch(code, folder):
    """What a program prints in which nothing can import torch, datasets, transformers or numpy; nor its children."""
    blocked = "import sys\nfor name in ('torch', 'datasets', 'transformers', 'numpy'):\n    sys.modules[name] = None\n"
    (folder / "sitecustomize.py").write_text(blocked)
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )


def test_every_module_is_imported_and_answers_are_judged(tmp_path):
    asked = r"from answer_judge.grading import verify; print(verify(r'so \boxed{\frac{6}{4}}', '1.5').reason)"
    done = without_torch(EVERY_MODULE + asked, tmp_path)
    assert done.stdout == "right\n", done.stderr


def test_the_check_above_can_fail(tmp_path):
    done = without_torch("import answer_judge.problems", tmp_path)
    assert "import of datasets halted" in done.stderr or "import of torch halted" in done.stderr
