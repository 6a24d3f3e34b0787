import pytest

from dppo import __version__
from dppo.cli.main import COMMANDS, main
from dppo.errors import ConfigError
from dppo.install import install_line


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
    assert "unknown command 'trian'" in capsys.readouterr().err


def test_our_errors_are_one_line_without_a_traceback(capsys, monkeypatch):
    import dppo.cli.demo

    def fails(words):
        raise ConfigError("rate=2 must be below 1")

    monkeypatch.setattr(dppo.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "dppo demo: rate=2 must be below 1\n"


def test_missing_extra_names_the_install_line(capsys, monkeypatch):
    import dppo.cli.demo

    def fails(words):
        raise ModuleNotFoundError("No module named 'trl'", name="trl")

    monkeypatch.setattr(dppo.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == f"dppo demo needs trl, which is not installed: {install_line('trl')}\n"


def test_a_package_that_is_there_and_broken_is_not_called_none(capsys, monkeypatch):
    """As transformers raises it for a torchvision that was built for another torch."""
    import dppo.cli.demo

    def fails(words):
        broken = RuntimeError("operator torchvision::nms does not exist")
        raise ModuleNotFoundError(
            "Could not import module 'ProcessorMixin'. Are this object's requirements?"
        ) from broken

    monkeypatch.setattr(dppo.cli.demo, "main", fails)
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert "None" not in said and "torchvision::nms does not exist" in said and "pip check" in said


def test_a_stop_is_one_line_and_exit_code_130(capsys, monkeypatch):
    import dppo.cli.demo

    def stops(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(dppo.cli.demo, "main", stops)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "dppo demo: stopped\n"


def test_other_errors_keep_their_traceback(monkeypatch):
    import dppo.cli.demo

    monkeypatch.setattr(dppo.cli.demo, "main", lambda words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["demo"])
