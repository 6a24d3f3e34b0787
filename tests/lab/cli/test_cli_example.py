"""``dppo example``: what is listed can be written, runs there, and nothing of a user's is overwritten."""

import pytest
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab import shipped
from dppo.lab.cli.main import main


def test_all_examples_are_listed_with_what_they_are_about(tmp_path, capsys):
    assert main(["example"]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    named = dict(line.split(maxsplit=1) for line in lines)
    assert {"gsm8k", "verl", "code", "countdown", "embedded", "embedded_compare", "custom_reward"} <= named.keys()
    assert named["countdown"] == "A task of your own: Countdown" and all(text.strip() for text in named.values())
    with refused(ConfigError, "'contdown'", "Did you mean countdown?", "dppo example"):
        shipped.write_example("contdown", tmp_path)


@pytest.mark.parametrize("name", ["code", "embedded"])
def test_an_example_is_written_as_it_is_and_a_changed_file_is_left_alone(name, tmp_path):
    written = shipped.write_example(name, tmp_path)
    for path in written:
        assert path.read_bytes() == (shipped.EXAMPLES / path.relative_to(tmp_path / "examples")).read_bytes()
    assert shipped.write_example(name, tmp_path) == written, "a second time changes nothing"
    written[-1].write_text("mine: true\n")
    with refused(ConfigError, written[-1].name, "differs"):
        shipped.write_example(name, tmp_path)
    assert written[-1].read_text() == "mine: true\n"


def test_what_an_error_names_is_there_after_the_command_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "nope.yaml"]) == 2
    said = capsys.readouterr().err
    assert "Try examples/embedded.yaml (dppo example embedded writes it)" in said
    assert main(["example", "embedded"]) == 0 and main(["train", "examples/embedded.yaml", "--dry_run"]) == 0
    assert "How to run it: in its first lines" in capsys.readouterr().out
