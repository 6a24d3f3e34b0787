"""The command ``dppo``: exit codes and quick answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dppo import __version__
from dppo.errors import ConfigError
from dppo.install import install_line
from dppo.lab.cli.main import COMMANDS, main


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS) and main([]) == 2


MISSING = ModuleNotFoundError("No module named 'trl'", name="trl")
# As transformers raises it for a torchvision that was built for another torch.
BROKEN = ModuleNotFoundError("Could not import module 'ProcessorMixin'. Are this object's requirements?")
BROKEN.__cause__ = RuntimeError("operator torchvision::nms does not exist")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("rate=2 must be below 1"), 2, "dppo demo: rate=2 must be below 1"),
        (MISSING, 2, f"dppo demo needs trl, which is not installed: {install_line('trl')}"),
        (BROKEN, 2, "torchvision::nms does not exist"),
        (KeyboardInterrupt(), 130, "dppo demo: stopped"),
    ],
)
def test_our_errors_are_one_line_without_a_traceback(capsys, monkeypatch, error, code, said):
    monkeypatch.setattr("dppo.lab.cli.demo.main", Mock(side_effect=error))
    assert main(["demo"]) == code
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1 and "None" not in printed


# Quick answers

ROOT = Path(__file__).parents[3]
RUN = """
import contextlib, io, json, sys
for name in ("torch", "transformers", "trl", "datasets", "scipy", "matplotlib"):
    sys.modules[name] = None  # to import it is an error now
from dppo.lab.cli.main import main
for words in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stopped:  # of argparse
            code = stopped.code or 0
    print(json.dumps([code, said.getvalue()]))
"""
NOT_THERE = "there is no configuration file nope.yaml"
QUICK = [
    ("--version", 0, __version__),
    ("trian", 2, "unknown command 'trian'. Did you mean train?"),
    ("train", 2, "--completion_prune_rate VALUE"),
    ("train examples/embedded.yaml -h", 0, "--completion_prune_rate VALUE"),
    ("train nope.yaml", 2, f"dppo train: {NOT_THERE}. Try examples/embedded.yaml"),
    ("compare --frozen --help", 0, "--rates"),
    ("demo --help", 0, "--no-kl"),
    ("demo --seeds 0", 2, "dppo demo: seeds=0 must be at least 1. Try dppo demo --seeds 5"),
    ("plan nope.yaml --pilot 32", 2, f"dppo plan: {NOT_THERE}"),
    ("compare --frozen nope.yaml", 2, f"dppo compare: {NOT_THERE}"),
    # The wrong twin: this one needs them.
    ("train --no_such_field 1", 2, "dppo train needs t"),
]


def test_what_can_be_said_at_once_is_said_without_torch_and_trl():
    given = json.dumps([words.split() for words, _, _ in QUICK])
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "text": True, "capture_output": True}
    found = subprocess.run([sys.executable, "-c", RUN], input=given, **options)
    assert found.returncode == 0, found.stderr
    for (words, code, says), line in zip(QUICK, found.stdout.splitlines(), strict=True):
        exited, said = json.loads(line)
        assert exited == code and says in said, (words, said)
