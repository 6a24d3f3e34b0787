"""The command end to end on a tiny model, with the real verifier, and bad arguments."""

import json
import runpy
import sys

import pytest
from refusals import refused

from answer_judge.errors import ConfigError, JudgeError
from answer_judge.evaluation import command
from answer_judge.evaluation.command import main

ROWS = [{"problem": f"{a}+{b}", "answer": str(a + b)} for a in range(3) for b in range(2)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def words(tiny_folder, file, tmp_path):
    """A command that works; further words may follow."""
    fixed = f"{tiny_folder} --benchmark sums={file} --samples 4 --max_new_tokens 6 --temperature 1 --top_p 1"
    return [*fixed.split(), "--prompt_template", "{problem}", "--output", str(tmp_path / "out")]


def test_tables_files_continuing_and_comparison(words, tmp_path, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "pass@4" in printed and "not the standard set" in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    lines = (tmp_path / "out" / "samples.jsonl").read_text()
    assert len(lines.splitlines()) == 24
    (tmp_path / "out" / "samples.jsonl").write_text(lines[: len(lines) // 2])
    assert main(words) == 0
    assert (tmp_path / "out" / "samples.jsonl").read_text() == lines
    assert json.loads((tmp_path / "out" / "results.json").read_text())["benchmarks"] == results["benchmarks"]
    assert main([*words[:-1], str(tmp_path / "other"), "--seed", "1"]) == 0
    folders = [str(tmp_path / name) for name in ("out", "other", "c")]
    assert main(["--compare", *folders[:2], "--output", folders[2]]) == 0
    written = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert written["settings"] == ["seed is 0 there and 1 here"] and written["benchmarks"]["sums"]["problems"] == 6
    assert "different: seed is 0 there and 1 here" in capsys.readouterr().out


def test_a_stop_and_engines_that_cannot_start_say_what_to_do(words, capsys, monkeypatch):
    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate", stop)
    assert main(words) == command.INTERRUPTED
    assert "stopped; the same command goes on" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--engine_args", "[1]"])
    assert "expected such as '{\"name\": 1}'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "vllm", None)
    with refused(ConfigError, "pip install 'vllm>=0.22,<0.31', or --engine transformers"):
        main([*words, "--engine", "vllm"])


REFUSED = [
    ("m --compare a b", "--compare a b"),
    ("m --benchmark sums=FILE --samples 4 --k 1,8", "k=8 must be between 1 and the 4 samples"),
    ("m --benchmark sums=FILE --k one", "--k one"),
    ("m --benchmarks math5000", "'math5000'"),
    ("m --benchmark more=nothing.jsonl", "nothing.jsonl"),
    ("MODEL --benchmark sums=FILE --workers 0", "workers=0"),
]


@pytest.mark.parametrize(("given", "named"), REFUSED)
def test_bad_words_are_refused(given, named, file, tiny_folder, tmp_path):
    given = given.replace("FILE", str(file)).replace("MODEL", str(tiny_folder))
    with refused(JudgeError, named):
        main([*given.split(), *(["--output", str(tmp_path / "out")] if "--compare" not in given else [])])


def test_a_refusal_is_one_line_with_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evaluation"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("answer_judge.evaluation", run_name="__main__")
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1 and "no model is named" in error
