import os
import subprocess
import sys
from pathlib import Path

import pytest

from dppo import __version__
from dppo.errors import ConfigError
from dppo.install import install_line
from dppo_lab.cli.main import COMMANDS, main


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert main([]) == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_unknown_command(capsys):
    assert main(["trian"]) == 2
    assert "unknown command 'trian'. Did you mean train?\n" in capsys.readouterr().err
    assert main(["xyz"]) == 2
    assert "unknown command 'xyz'.\n" in capsys.readouterr().err


def test_our_errors_are_one_line_without_a_traceback(capsys, monkeypatch):
    import dppo_lab.cli.demo

    def fails(words):
        raise ConfigError("rate=2 must be below 1")

    monkeypatch.setattr(dppo_lab.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "dppo demo: rate=2 must be below 1\n"


def test_missing_extra_names_the_install_line(capsys, monkeypatch):
    import dppo_lab.cli.demo

    def fails(words):
        raise ModuleNotFoundError("No module named 'trl'", name="trl")

    monkeypatch.setattr(dppo_lab.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == f"dppo demo needs trl, which is not installed: {install_line('trl')}\n"


def test_a_package_that_is_there_and_broken_is_not_called_none(capsys, monkeypatch):
    """As transformers raises it for a torchvision that was built for another torch."""
    import dppo_lab.cli.demo

    def fails(words):
        broken = RuntimeError("operator torchvision::nms does not exist")
        raise ModuleNotFoundError(
            "Could not import module 'ProcessorMixin'. Are this object's requirements?"
        ) from broken

    monkeypatch.setattr(dppo_lab.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert "None" not in said and "torchvision::nms does not exist" in said and "pip check" in said


def test_a_stop_is_one_line_and_exit_code_130(capsys, monkeypatch):
    import dppo_lab.cli.demo

    def stops(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(dppo_lab.cli.demo, "main", stops)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "dppo demo: stopped\n"


def test_other_errors_keep_their_traceback(monkeypatch):
    import dppo_lab.cli.demo

    monkeypatch.setattr(dppo_lab.cli.demo, "main", lambda words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


# -- quick answers, and output that nobody reads ----------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "transformers", "trl", "datasets", "scipy", "matplotlib"}
RUN = """
import sys
from dppo_lab.cli.main import main
try:
    code = main({words!r})
except SystemExit as stopped:  # of argparse
    code = stopped.code or 0
print(code, *sys.modules, file=sys.stderr)
"""


def in_a_process(code, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, **options)


def imported_by(*words):
    """The exit code of a command in a process of its own, what it said, and what of ``HEAVY`` it imported."""
    found = in_a_process(RUN.format(words=list(words)), capture_output=True)
    *said, last = found.stderr.splitlines()
    code, *modules = last.split()
    return int(code), found.stdout + "\n".join(said), HEAVY & set(modules)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, "usage: dppo COMMAND"),
        (["--version"], 0, __version__),
        (["trian"], 2, "Did you mean train?"),
        (["train"], 2, "--completion_prune_rate X"),
        (["train", "--help"], 0, "--completion_prune_rate X"),
        (["train", "examples/embedded.yaml", "-h"], 0, "--completion_prune_rate X"),
        (["train", "nope.yaml"], 2, "dppo train: there is no configuration file nope.yaml. Try examples/embedded.yaml"),
        (["train", "--config", "nope.yaml"], 2, "there is no configuration file nope.yaml"),
        (["plan", "--help"], 0, "--pilot N"),
        (["verify", "--help"], 0, "--output"),
        (["compare", "--help"], 0, "--methods"),
        (["compare", "--frozen", "--help"], 0, "--rates"),
        (["demo", "--help"], 0, "--quick"),
        (["demo", "--seeds", "0"], 2, "dppo demo: seeds=0 must be at least 1. Try dppo demo --seeds 5"),
        (["report", "--help"], 0, "--output FILE.html"),
        (["plan", "nope.yaml", "--pilot", "32"], 2, "dppo plan: there is no configuration file nope.yaml"),
        (["verify", "nope.yaml"], 2, "dppo verify: there is no configuration file nope.yaml"),
        (["compare", "nope.yaml", "--seeds", "2"], 2, "dppo compare: there is no configuration file nope.yaml"),
        (["compare", "--frozen", "nope.yaml"], 2, "dppo compare: there is no configuration file nope.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_be_said_at_once_is_said_before_torch_and_trl_are_imported(words, code, says):
    found, said, heavy = imported_by(*words)
    assert found == code and says in said and not heavy


def test_what_needs_torch_is_seen_to_import_it():
    """The wrong twin of the test above."""
    assert imported_by("train", "--no_such_field", "1")[2] >= {"torch", "transformers", "trl"}


def read_by_nobody(code):
    """The exit code and errors of code whose standard output is a pipe that is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    try:
        found = in_a_process(code, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    return found.returncode, found.stderr


PRINTS = {
    "a line": "print('x')",
    "more than a buffer": "print('x' * 100_000)",
    "lines": "[print('x' * 100) for _ in range(1000)]",
    "flushed": "print('x', flush=True)",
    "rich": "from rich.console import Console; Console().print('x')",
    "argparse": "import argparse; argparse.ArgumentParser().parse_args(['--help'])",
}


@pytest.mark.parametrize("how", PRINTS)
def test_output_that_nobody_reads_ends_a_command_without_a_word(how):
    before, _, prints = PRINTS[how].rpartition("; ")
    command = f"{before or 'pass'}; import sys, types; demo = types.ModuleType('demo'); demo.main = lambda _: {prints}"
    main_of = "sys.modules['dppo_lab.cli.demo'] = demo; from dppo_lab.cli.main import main; sys.exit(main(['demo']))"
    assert read_by_nobody(f"{command}; {main_of}") == (141, "")


def test_the_help_of_a_command_ends_without_a_word():
    code = "import sys; from dppo_lab.cli.main import main; sys.exit(main({words!r}))"
    for words in (["--help"], ["train", "--help"], ["verify", "--help"]):
        assert read_by_nobody(code.format(words=words)) == (141, ""), words
    assert read_by_nobody("print('x' * 100_000)")[1], "without main it is a traceback"


def test_another_broken_pipe_keeps_its_traceback(monkeypatch, capfd):
    import dppo_lab.cli.demo

    def fails(words):
        raise BrokenPipeError("a worker is gone")

    monkeypatch.setattr(dppo_lab.cli.demo, "main", fails)
    with open(os.devnull, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError, match="a worker is gone"):
            main(["demo"])
