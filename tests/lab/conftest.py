import os
import subprocess
import sys

import pytest

from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.runs import lock

HOLD = """
import sys
from pathlib import Path
from dppo_lab.runs.lock import sole_writer_of
with sole_writer_of(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def save_untrained(folder, seed=0):
    """Write the untrained policy of the embedded task and its tokenizer into a folder."""
    build_model(seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """A folder with the untrained policy of the embedded task and its tokenizer."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    save_untrained(folder)
    return folder


@pytest.fixture
def made_quickly(monkeypatch):
    """Policies from scratch are not warmed up; gives the folder, the seed and the task of each that was made."""
    made = []

    def prepare(folder, *given, seed, task=None, **options):
        made.append((folder, seed, task))
        save_untrained(folder, seed)

    for name in ("prepare_embedded", "prepare_text"):
        monkeypatch.setattr(f"dppo_lab.runs.models.{name}", prepare)
    return made


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A process that writes the folder ``out`` until its input ends."""
    monkeypatch.setattr(lock, "PATIENCE", 0.1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as made:
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()
