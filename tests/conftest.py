import gc
import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: there is one test per core already

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def subject():
    """Six prompts with four completions each of the untrained embedded model, none of them rewarded: seconds."""
    from dppo.lab.subject import SubjectSampling, frozen_subject
    from dppo.verification.tiny_model import build_model
    from dppo.verification.tiny_tokenizer import build_tokenizer

    return frozen_subject(
        build_model(0),
        build_tokenizer(),
        [[1, 4 + p, 14, 5 + p, 16, 2] for p in range(6)],
        lambda prompt, tokens: torch.zeros(len(tokens), 1),
        sampling=SubjectSampling(generations=4, max_new_tokens=10),
        title="untrained",
    )


@pytest.fixture(scope="session")
def confined():
    """Skips where the system cannot confine a program: the library then refuses to run any."""
    from answer_judge.errors import ConfigError
    from answer_judge.sandbox import Sandbox

    with Sandbox(workers=1) as sandbox:
        try:
            assert sandbox.layers
        except ConfigError as refused:
            pytest.skip(str(refused))


def pytest_collection_finish():
    """What is imported stays until the end: the garbage collector need not walk it again.

    Every training of TRL collects garbage once, and walking transformers was more than half of such a run's time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def verifier():
    """One pool for all tests that judge answers: starting workers takes most of a second."""
    from answer_judge.grading import Verifier

    with Verifier(workers=2, limit_seconds=20.0) as verifier:
        yield verifier


HOLD = """
import runpy, sys
from pathlib import Path
files = runpy.run_path(sys.argv[2])  # the file alone, since importing its package takes longer
with files["sole_writer_of"](Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A process that writes the folder ``out`` until its input ends."""
    from dppo.trl.checkpoints import files

    monkeypatch.setattr(files, "PATIENCE", 0.1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HOLD, str(tmp_path / "out"), files.__file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as made:
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()
