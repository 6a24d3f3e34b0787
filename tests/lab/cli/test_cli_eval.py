"""``dppo eval`` end to end on a tiny model, with the real verifier, and every bad argument."""

import json
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dppo.verification.tiny_model import build_model
from dppo_lab.cli.main import main
from dppo_lab.demo.scratch import train_tokenizer
from dppo_lab.runs.embedded import TASKS

REAL = Path(__file__).parents[4] / "shared" / "data"
KNOWN = ", ".join(repr(f"scratch:{name}") for name in (*TASKS, "text"))
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


def test_each_k_that_is_asked_for_is_shown(words, tmp_path, capsys):
    assert main([*words, "--k", "1,2,3"]) == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("by k") :].splitlines()
    assert [line.split()[:2] for line in table[2:4]] == [["sums", "2"], ["sums", "3"]]
    assert "@3 " in printed and "@4 " not in printed
    one = [*words[:-1], str(tmp_path / "one"), "--samples", "1", "--temperature", "0"]
    assert main(one) == 0
    printed = capsys.readouterr().out
    assert "pass@1" in printed and "pass@k" not in printed


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--samples 0", "samples=0"),
        ("--k 1,8", "k=8 must be between 1 and the 4 samples"),
        ("--k a", "--k a"),
        ("--limit 0", "--limit 0"),
        ("--engine best", "--engine best"),
        ("--temperature 0", "temperature=0"),
        ("--benchmarks math5000", "'math5000'"),
        ("--benchmark more=nothing.jsonl", "nothing.jsonl"),
        ("--batch_size 0", "batch_size=0"),
        ("--workers 0", "workers=0"),
        ("--dtype float31", "dtype='float31'"),
    ],
)
def test_bad_arguments_are_one_line(words, capsys, extra, message):
    assert main([*words, *extra.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "no model is named"),
        ("m --compare a b", "no model: dppo eval --compare a b"),
        (
            "scratch:big",
            f"'scratch:big' is not one of {', '.join(repr(f'scratch:{each}') for each in (*TASKS, 'text'))}",
        ),
        ("scratch:text", "--scratch_data FILE"),
    ],
)
def test_bad_commands(words, capsys, given, said):
    assert main(["eval", *given.split(), *(words[2:] if given.startswith("scratch") else [])]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("value", ["{", "[1]"])
def test_arguments_of_the_engine_are_an_object(words, capsys, value):
    with pytest.raises(SystemExit):
        main([*words, "--engine_args", value])
    assert "expected such as '{\"name\": 1}'" in capsys.readouterr().err


def test_engine_that_is_not_installed(words, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert main([*words, "--engine", "vllm"]) == 2
    assert "pip install 'vllm>=0.22,<0.32', or --engine transformers" in capsys.readouterr().err


def test_stopped_by_hand(words, capsys, monkeypatch):
    from dppo_lab.cli import eval as command

    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate", stop)
    assert main(words) == command.INTERRUPTED
    assert "stopped; the same command goes on" in capsys.readouterr().err


def test_a_model_from_scratch_is_made_once_for_its_arguments(words, tmp_path, made_quickly):
    out, data = tmp_path / "out", ["--scratch_data", words[3].removeprefix("sums=")]
    calls = [["scratch:embedded_quick"], ["scratch:embedded_sparse"], ["scratch:text", *data]]
    calls += [[*calls[2], "--seed", "1"], [*calls[2], "--scratch_minutes", "0.5"]]
    for number, (name, *more) in enumerate([*calls, *calls]):
        if number:
            (out / "samples.jsonl").unlink()
            (out / "settings.json").unlink()
        assert main(["eval", name, *words[2:], *more]) == 0
    found = [(folder.name, seed, task) for folder, seed, task in made_quickly]
    assert found[:2] == [(f"scratch-{name}-seed0", 0, TASKS[name]) for name in ("embedded_quick", "embedded_sparse")]
    assert [name for name, *_ in found[2:]] == [
        f"scratch-text-{rest}-sums" for rest in ("seed0-3min", "seed1-3min", "seed0-0.5min")
    ]
    settings = json.loads((out / "settings.json").read_text())
    assert settings["engine"]["model"] == found[4][0] and settings["engine"]["format"] == "chat template"


@pytest.mark.skipif(not REAL.exists(), reason="the benchmarks are not beside this checkout")
def test_real_benchmarks_with_a_model_that_reads_any_text(tmp_path, capsys):
    tokenizer: PreTrainedTokenizerFast = train_tokenizer(["The answer is \\boxed{2}."])
    from dppo.verification.tiny_model import model_config

    build_model(0, model_config(len(tokenizer), longest=4096, pad=0, end=3)).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    names = "gsm8k,math500,aime24,amc23,minerva_math,olympiadbench"
    words = (
        f"eval {tmp_path / 'm'} --benchmarks {names} --data {REAL / 'eval'} --samples 1 --limit 2 --max_new_tokens 4"
    )
    assert main([*words.split(), "--output", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert all(found["standard"] and found["notes"] for found in results["benchmarks"].values())
    assert "average" in capsys.readouterr().out
