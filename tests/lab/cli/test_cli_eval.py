"""``dppo eval`` end to end on a tiny model, with the real verifier, and every bad argument."""

import json
import sys

import pytest

from dppo_lab.cli import eval as command
from dppo_lab.cli.main import main
from dppo_lab.runs.embedded import TASKS

ROWS = [{"problem": f"{a}+{b}", "answer": str(a + b), "level": 1 + a % 2} for a in range(3) for b in range(2)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def words(untrained, file, tmp_path):
    """A command that works; further words may follow."""
    fixed = f"eval {untrained} --benchmark sums={file} --samples 4 --max_new_tokens 6 --temperature 1 --top_p 1"
    return [*fixed.split(), "--prompt_template", "{problem}", "--output", str(tmp_path / "out")]


def test_tables_files_and_continuing(words, tmp_path, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    for text in ("sums *", "pass@1", "pass@k", "maj@k", "no_answer", "truncated", "by level", "not the standard set"):
        assert text in printed, text
    assert "…" not in printed, "nothing is cut off"
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["benchmarks"]["sums"]["problems"] == 6 and results["benchmarks"]["sums"]["samples"] == 4
    lines = (tmp_path / "out" / "samples.jsonl").read_text()
    assert len(lines.splitlines()) == 24
    (tmp_path / "out" / "samples.jsonl").write_text(lines[: len(lines) // 2])
    assert main(words) == 0
    assert (tmp_path / "out" / "samples.jsonl").read_text() == lines
    assert json.loads((tmp_path / "out" / "results.json").read_text())["benchmarks"] == results["benchmarks"]


def test_comparison(words, tmp_path, capsys):
    assert main(words) == 0
    other = [*words[:-1], str(tmp_path / "other"), "--seed", "1"]
    assert main(other) == 0
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in ("out", "other", "c")]
    assert main(["eval", "--compare", *folders[:2], "--output", folders[2]]) == 0
    written = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert written["settings"] == ["seed is 0 there and 1 here"] and written["benchmarks"]["sums"]["problems"] == 6
    printed = capsys.readouterr().out
    assert "different: seed is 0 there and 1 here" in printed and "B minus A" in printed and "sums" in printed
    assert main(["eval", "--compare", str(tmp_path / "out"), str(tmp_path / "none")]) == 2
    assert "no finished evaluation" in capsys.readouterr().err


def test_a_model_from_scratch_is_made_once_for_its_arguments(words, tmp_path, made_quickly):
    out = tmp_path / "out"
    calls = [["scratch:embedded_quick"], ["scratch:embedded_sparse"], ["scratch:embedded_quick", "--seed", "1"]]
    for number, (name, *more) in enumerate([*calls, *calls]):
        if number:
            (out / "samples.jsonl").unlink()
            (out / "settings.json").unlink()
        assert main(["eval", name, *words[2:], *more]) == 0
    found = [(folder.name, seed, task) for folder, seed, task in made_quickly]
    named = [("embedded_quick", 0), ("embedded_sparse", 0), ("embedded_quick", 1)]
    assert found == [(f"scratch-{name}-seed{seed}", seed, TASKS[name]) for name, seed in named]
    settings = json.loads((out / "settings.json").read_text())
    assert settings["engine"]["model"] == found[2][0] and settings["engine"]["format"] == "chat template"


def test_an_output_that_is_a_file_is_refused_in_a_sentence(words, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert main(["eval", "scratch:embedded", *words[2:]]) == 2
    assert "name another folder with --output_dir (dppo eval: --output)" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


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
    assert main([*words, "--engine", "vllm"]) == 2
    assert "pip install 'vllm>=0.22,<0.31', or --engine transformers" in capsys.readouterr().err
